//! The server, called as a router and over sockets.
#![allow(clippy::unwrap_used)]

mod api;
mod document;
mod live;
mod once;
mod pages;
mod schema;
mod security;
mod world;
