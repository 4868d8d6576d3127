//! Draws programs from a seed.

use std::time::Duration;

use everstep::testing::simulation::Rng;

use super::{
    events::{EVENTS, KEYS},
    program::{Body, Care, ChildOp, DeferredOp, End, EventOp, How, Op, Program, Settler, StepOp},
};

/// The kinds of operations, each with how often it is drawn against the others.
const KINDS: [(Kind, u64); 17] = [
    (Kind::Step, 10),
    (Kind::Sleep, 4),
    (Kind::Listen, 3),
    (Kind::Send, 3),
    (Kind::Event, 3),
    (Kind::Publish, 3),
    (Kind::Deferred, 3),
    (Kind::Child, 3),
    (Kind::Finished, 1),
    (Kind::Join, 3),
    (Kind::PlainJoin, 2),
    (Kind::Unordered, 2),
    (Kind::Select, 2),
    (Kind::Map, 2),
    (Kind::Race, 2),
    (Kind::Attempt, 1),
    (Kind::Repeat, 2),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Step,
    Sleep,
    Listen,
    Send,
    Event,
    Publish,
    Deferred,
    Child,
    Finished,
    Join,
    PlainJoin,
    Unordered,
    Select,
    Map,
    Race,
    Attempt,
    Repeat,
}

impl Kind {
    fn has_parts(self) -> bool {
        match self {
            Kind::Step | Kind::Sleep | Kind::Listen | Kind::Send => false,
            Kind::Event | Kind::Publish | Kind::Deferred | Kind::Child | Kind::Finished => false,
            Kind::Join | Kind::PlainJoin | Kind::Unordered | Kind::Select => true,
            Kind::Map | Kind::Race | Kind::Attempt | Kind::Repeat => true,
        }
    }
}

/// How many channels a run listens to.
pub(crate) const CHANNELS: u64 = 3;

/// How deep programs are.
const DEPTH_MAX: usize = 3;

/// After so many operations of a program none with parts is drawn.
const OPS_MAX: u32 = 20;

/// Draws the programs of a life.
pub(crate) struct Draw<'a> {
    rng: &'a mut Rng,
    /// The kinds that this life has: not all lives have all.
    kinds: Vec<(Kind, u64)>,
    /// How many programs there are.
    programs: usize,
    lease: Duration,
    next_id: u32,
    /// Which program is drawn.
    number: usize,
    /// Whether runs have children, wait for each other's end, and go on as other generations.
    has_relatives: bool,
}

impl<'a> Draw<'a> {
    pub(crate) fn new(
        rng: &'a mut Rng,
        programs: usize,
        lease: Duration,
        has_relatives: bool,
    ) -> Draw<'a> {
        let mut kinds: Vec<_> = KINDS.to_vec();
        kinds.retain(|(kind, _)| match kind {
            Kind::Step => true,
            kind if kind.has_parts() => rng.below(2) > 0,
            Kind::Event | Kind::Publish | Kind::Deferred => rng.below(2) > 0,
            Kind::Child | Kind::Finished => has_relatives && rng.below(2) > 0,
            _ => rng.below(4) > 0,
        });
        Draw { rng, kinds, programs, lease, next_id: 0, number: 0, has_relatives }
    }

    pub(crate) fn program(&mut self) -> Program {
        self.next_id = 0;
        let length = 1 + self.rng.below(6) as usize;
        let program = Program {
            version: 1 + self.rng.below(2) as u32,
            ops: self.ops(length, 0),
            end: self.end(),
            generations: self.generations(),
        };
        self.number += 1;
        program
    }

    /// A program of one or two operations, for the many runs of a schedule.
    pub(crate) fn short_program(&mut self) -> Program {
        self.next_id = 0;
        let mut op = || {
            self.next_id += 1;
            let id = self.next_id;
            match self.rng.below(3) {
                0 => Op::Sleep { id, lasts: self.time(self.lease * 2) },
                _ => self.step(id),
            }
        };
        let mut ops = vec![op()];
        ops.extend((self.rng.below(2) == 0).then(|| self.step(2)));
        Program { version: 1 + self.rng.below(2) as u32, ops, end: End::Completes, generations: 1 }
    }

    fn ops(&mut self, length: usize, depth: usize) -> Vec<Op> {
        (0..length).map(|_| self.op(depth)).collect()
    }

    fn op(&mut self, depth: usize) -> Op {
        let all: u64 = self.kinds.iter().map(|(_, weight)| weight).sum();
        let mut drawn = self.rng.below(all);
        let kind = self.kinds.iter().find(|(_, weight)| {
            let is_drawn = drawn < *weight;
            drawn = drawn.saturating_sub(*weight);
            is_drawn
        });
        let kind = kind.map_or(Kind::Step, |(kind, _)| *kind);
        self.next_id += 1;
        let id = self.next_id;
        match kind {
            Kind::Step => self.step(id),
            kind if kind.has_parts() && (depth >= DEPTH_MAX || id > OPS_MAX) => self.step(id),
            Kind::Sleep => Op::Sleep { id, lasts: self.time(self.lease * 4) },
            Kind::Listen => Op::Listen { id, channel: self.channel(), timeout: self.timeout() },
            Kind::Send => Op::Send {
                id,
                to: self.rng.below(self.programs as u64) as usize,
                channel: self.channel(),
            },
            Kind::Event => Op::Event(EventOp {
                id,
                event: self.rng.below(EVENTS.len() as u64) as usize,
                key: self.event_key(),
                timeout: self.timeout(),
            }),
            Kind::Publish => Op::Publish {
                id,
                event: self.rng.below(EVENTS.len() as u64) as usize,
                key: self.event_key(),
            },
            Kind::Deferred => self.deferred(id),
            Kind::Child if depth >= DEPTH_MAX || id > OPS_MAX => self.step(id),
            Kind::Child => self.child(id, depth),
            // Of a later one, so that no two wait for each other.
            Kind::Finished if self.number + 1 >= self.programs => self.step(id),
            Kind::Finished => {
                let later = (self.programs - self.number - 1) as u64;
                let of = self.number + 1 + self.rng.below(later) as usize;
                Op::Finished { id, of, timeout: self.timeout() }
            }
            Kind::Join => self.parts(id, How::Join, depth),
            Kind::PlainJoin => self.parts(id, How::PlainJoin, depth),
            Kind::Unordered => self.parts(id, How::Unordered, depth),
            Kind::Select => self.parts(id, How::Select, depth),
            Kind::Map => {
                let concurrency = 1 + self.rng.below(3) as usize;
                self.parts(id, How::Map { concurrency }, depth)
            }
            Kind::Race => {
                let first_fails = self.rng.below(3) == 0;
                self.parts(id, How::Race { first_fails }, depth)
            }
            Kind::Attempt => {
                let fails = self.rng.below(2) == 0;
                Op::Parts { id, how: How::Attempt { fails }, parts: vec![self.part(depth)] }
            }
            Kind::Repeat => {
                let mut few = || 1 + self.rng.below(4);
                let how = How::Repeat {
                    times: few(),
                    commit_every: few(),
                    history_every: few(),
                    history_keep: few(),
                };
                Op::Parts { id, how, parts: vec![self.part(depth)] }
            }
        }
    }

    /// The time limit of a wait, if it has one.
    fn timeout(&mut self) -> Option<Duration> {
        match self.rng.below(3) {
            0 => None,
            _ => Some(self.limit()),
        }
    }

    fn limit(&mut self) -> Duration {
        self.time(self.lease * 4) + Duration::from_millis(1)
    }

    fn event_key(&mut self) -> Option<u32> {
        let drawn = self.rng.below(KEYS + 1) as u32;
        drawn.checked_sub(1)
    }

    fn deferred(&mut self, id: u32) -> Op {
        let settler = match self.rng.below(3) {
            0 => Settler::Body,
            1 => Settler::Later(self.time(self.lease * 2)),
            _ => Settler::Clients,
        };
        Op::Deferred(DeferredOp {
            id,
            settler,
            rejects: self.rng.below(3) == 0,
            looks: self.rng.below(2) as u32,
            timeouts: (0..self.rng.below(3)).map(|_| self.limit()).collect(),
            waits: self.rng.below(2) == 0,
        })
    }

    fn child(&mut self, id: u32, depth: usize) -> Op {
        let care = match self.rng.below(3) {
            0 => Care::Awaited,
            1 => Care::Detached,
            _ => Care::GivenUp(self.limit()),
        };
        let length = 1 + self.rng.below(3) as usize;
        let program = Program {
            version: 1 + self.rng.below(2) as u32,
            ops: self.ops(length, depth + 1),
            end: self.end(),
            generations: self.generations(),
        };
        Op::Child(ChildOp { id, program, care, leave: self.rng.below(3) == 0, key: None })
    }

    fn end(&mut self) -> End {
        match self.rng.below(8) {
            0 => End::Fails,
            1 => End::FailsInStep { attempts: self.rng.below(3) as u32 },
            _ => End::Completes,
        }
    }

    fn generations(&mut self) -> u32 {
        match self.rng.below(5) {
            0 if self.has_relatives => 2 + self.rng.below(2) as u32,
            _ => 1,
        }
    }

    fn channel(&mut self) -> u32 {
        self.rng.below(CHANNELS) as u32
    }

    fn parts(&mut self, id: u32, how: How, depth: usize) -> Op {
        let parts = 2 + self.rng.below(2);
        Op::Parts { id, how, parts: (0..parts).map(|_| self.part(depth)).collect() }
    }

    fn part(&mut self, depth: usize) -> Vec<Op> {
        let length = 1 + self.rng.below(3) as usize;
        self.ops(length, depth + 1)
    }

    fn step(&mut self, id: u32) -> Op {
        let rng = &mut *self.rng;
        let body =
            [Body::Async, Body::Async, Body::Async, Body::Spawned, Body::Blocking, Body::Clogging]
                [rng.below(6) as usize];
        let attempts = 1 + rng.below(4) as u32;
        let fails = match rng.below(4) {
            0 => rng.below(u64::from(attempts) + 1) as u32,
            _ => 0,
        };
        let ephemeral = rng.below(6) == 0;
        let delay = Duration::from_millis(1 + rng.below(2_000));
        let rollback = !ephemeral && rng.below(4) == 0;
        let timeout = match rng.below(6) {
            0 => Some(Duration::from_millis(1) + self.time(self.lease)),
            _ => None,
        };
        let retry_on_timeout = timeout.is_some() && self.rng.below(2) == 0;
        Op::Step(StepOp {
            id,
            body,
            lasts: self.time(self.lease * 2),
            ephemeral,
            fails,
            attempts,
            delay,
            timeout,
            retry_on_timeout,
            rollback,
            limit: None,
            emits: 0,
        })
    }

    /// A time that is mostly short, and now and then as long as this.
    fn time(&mut self, most: Duration) -> Duration {
        let most = match self.rng.below(6) {
            0 | 1 => return Duration::ZERO,
            2 | 3 => Duration::from_millis(20),
            4 => Duration::from_millis(500),
            _ => most,
        };
        Duration::from_millis(self.rng.up_to(most).as_millis() as u64)
    }
}
