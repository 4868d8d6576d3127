//! The command as a person uses it: its processes, what they print, and what they leave.

mod stage;

mod bench;
mod demo;
mod golden;
mod otel;
mod own_program;
mod serve;
