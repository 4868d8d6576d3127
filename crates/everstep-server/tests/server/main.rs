//! The server, called as a router and over sockets.
#![allow(clippy::unwrap_used)]

mod api;
mod audit;
mod changes;
mod document;
mod live;
mod login;
mod metrics;
mod once;
mod pages;
mod schema;
mod security;
mod sockets;
mod strict;
mod world;
