//! The workflows, as everybody knows them: names, inputs and outputs. Their code is elsewhere.

use everstep::Workflow;
use serde::{Deserialize, Serialize};

/// What is replaced under load.
pub const ORDER: Workflow<Order, Sent> = Workflow::new("order");

/// What orders start as their children.
pub const PARCEL: Workflow<Order, Sent> = Workflow::new("parcel");

/// The name of the message that some wait for.
pub const GO: &str = "go";

/// What a run is started with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// A number of its own.
    pub number: u64,
    /// The version that it was started with.
    pub version: u32,
    /// What it does between its first step and its last.
    pub between: Between,
}

/// What a run does between its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Between {
    /// Nothing.
    Nothing,
    /// Sleeps, for so many milliseconds.
    Sleeps(u64),
    /// Waits for a message.
    Waits,
    /// Has children that do nothing.
    HasChildren,
    /// Has children that sleep, for so many milliseconds.
    HasSleepers(u64),
}

impl Order {
    /// What a child of it is started with.
    pub fn for_child(&self) -> Order {
        let between = match self.between {
            Between::HasSleepers(ms) => Between::Sleeps(ms),
            _ => Between::Nothing,
        };
        Order { between, ..self.clone() }
    }

    /// What it gives when the code of this program has ended it.
    pub fn sent_by(&self, program: u32) -> Sent {
        Sent { number: self.number, by: program }
    }
}

/// What a run gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// The number of the order.
    pub number: u64,
    /// The program whose code ended it.
    pub by: u32,
}
