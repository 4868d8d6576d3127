//! Clients, each in a process of its own that follows a script.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use everstep::{
    Client, ClientError, RunError, RunHandle, RunId, Sent, Target, Token,
    testing::simulation::{self, Server, SimProcess},
};

use crate::{
    oracle::{
        Promise,
        ledger::{Ledger, Place, Sending, Told, note},
        requests::Request,
    },
    plan::{Act, Deed, Plan},
    work::{
        Order, PERFORM, PROGRAM_TAG, bodies,
        events::{EVENTS, event_key},
        key,
    },
};

/// A process that follows a script.
pub(crate) struct Actor {
    process: SimProcess,
    /// It does nothing any more but wait for results.
    only_waits: Arc<AtomicBool>,
}

impl Actor {
    /// Whether it changes nothing any more.
    pub(crate) fn is_done(&self) -> bool {
        self.process.is_dead() || self.only_waits.load(Ordering::Relaxed)
    }
}

/// Starts a process for each script.
pub(crate) fn begin(plan: &Arc<Plan>, server: &Arc<Server>, ledger: &Arc<Ledger>) -> Vec<Actor> {
    let begin = |number: usize| {
        let process = simulation::new_process(&format!("client-{number}"));
        process.set_clocks(plan.engines[number % plan.engines.len()].clocks);
        let store = server.open(&process, false);
        let (plan, ledger) = (plan.clone(), ledger.clone());
        let only_waits = Arc::new(AtomicBool::new(false));
        let actor = Actor { process: process.clone(), only_waits: only_waits.clone() };
        process.spawn("script", move || {
            let Ok(client) = Client::on(store) else {
                return only_waits.store(true, Ordering::Relaxed);
            };
            let outside =
                Outside { client, name: format!("client-{number}"), plan: plan.clone(), ledger };
            for act in &plan.scripts[number] {
                if act.deed.only_waits() {
                    only_waits.store(true, Ordering::Relaxed);
                }
                outside.act(act);
            }
            only_waits.store(true, Ordering::Relaxed);
        });
        actor
    };
    (0..plan.scripts.len()).map(begin).collect()
}

/// A client, and what it writes down.
#[derive(Clone)]
pub(crate) struct Outside {
    pub(crate) client: Client,
    pub(crate) name: String,
    pub(crate) plan: Arc<Plan>,
    pub(crate) ledger: Arc<Ledger>,
}

impl Outside {
    fn act(&self, act: &Act) {
        simulation::sleep(act.after);
        note(|| format!("{:?}", act.deed));
        match &act.deed {
            Deed::Start(program) => _ = self.start(*program),
            Deed::Send { to, channel, message, dedupe } => {
                self.send(*to, *channel, message, *dedupe)
            }
            Deed::Await(program) => self.with_run(*program, |run| self.hear_result(run)),
            Deed::Follow(program, what) => self.with_run(*program, |run| self.follow(run, *what)),
            Deed::Operate(operation) => self.operate(operation),
            Deed::Publish { event, key, body, dedupe } => self.publish(*event, *key, body, *dedupe),
            Deed::Settle { which, rejects } => self.settle_some(*which, *rejects),
            Deed::Request { to, channel, message } => self.request(*to, *channel, message),
            Deed::StartKeyed { keyed, origin } => self.start_keyed(*keyed, *origin),
            Deed::Enqueue(item) => self.enqueue(item),
            Deed::Schedule(number) => self.schedule(*number),
        }
    }

    /// Starts the run of a program, or finds it.
    pub(crate) fn start(&self, program: usize) -> Option<RunHandle<u64>> {
        let version = self.plan.programs[program].version;
        let start = self.client.start(PERFORM.version(version), Order::new(program));
        let start = start.key(key(program)).tag(PROGRAM_TAG, program.to_string());
        match simulation::block_on(start) {
            Ok(run) => {
                self.found(program, &run);
                self.ledger.is_started(run.id(), run.attached());
                if run.input_differs() {
                    let what = format!("run {} is said to have another input", run.id());
                    self.ledger.violate(Promise::ToldStaysTrue, what);
                }
                Some(run)
            }
            Err(ClientError::KeyUsed { run, .. }) if self.ledger.may_be_deleted(run) => None,
            Err(error) => {
                self.expect_store_error("a start", &error);
                None
            }
        }
    }

    /// A key leads to one run, until that is deleted.
    pub(crate) fn found(&self, program: usize, run: &RunHandle<u64>) {
        let mut book = self.ledger.book();
        let known = *book.runs.entry(program).or_insert(run.id());
        let is_deleted = book.requests.was_asked(known, Request::Delete);
        if is_deleted {
            book.runs.insert(program, run.id());
        }
        // The answer may be old: what it says was deleted since.
        let is_old = book.requests.was_asked(run.id(), Request::Delete);
        drop(book);
        if known != run.id() && !is_deleted && !is_old {
            let what = format!("`{}` was run {known}, and is run {} now", key(program), run.id());
            self.ledger.violate(Promise::ToldStaysTrue, what);
        }
    }

    fn send(&self, to: usize, channel: u32, message: &str, dedupe: bool) {
        let target = Target::Key { workflow: "perform".to_owned(), key: key(to) };
        self.send_to(&target, Some(to), channel, message, dedupe);
    }

    /// Sends a message to a run, which is of this program if it is no child.
    pub(crate) fn feed(&self, run: RunId, program: Option<usize>, channel: u32, message: &str) {
        self.send_to(&Target::Id(run), program, channel, message, true);
    }

    fn send_to(
        &self,
        target: &Target,
        program: Option<usize>,
        channel: u32,
        message: &str,
        dedupe: bool,
    ) {
        let (to, name) = (format!("{target:?}"), format!("channel-{channel}"));
        let index = {
            let mut book = self.ledger.book();
            book.sendings.push(Sending {
                to,
                program,
                message: message.to_owned(),
                is_delivered: None,
            });
            book.sendings.len() - 1
        };
        for _ in 0..if dedupe { 5 } else { 1 } {
            let mut send = self.client.send(target.clone(), &name, &message);
            if dedupe {
                send = send.dedupe(message);
            }
            let is_delivered = match simulation::block_on(send) {
                Ok(Sent::Delivered | Sent::Duplicate) => true,
                Ok(_) | Err(ClientError::UnknownRun { .. } | ClientError::Finished { .. }) => false,
                Err(error) => {
                    self.expect_store_error("a message", &error);
                    continue;
                }
            };
            self.ledger.book().sendings[index].is_delivered = Some(is_delivered);
            return;
        }
    }

    /// Publishes an event.
    pub(crate) fn publish(&self, event: usize, key: Option<u32>, body: &str, dedupe: bool) {
        self.ledger.publishes(event, key, body);
        for _ in 0..if dedupe { 5 } else { 1 } {
            let mut publish = self.client.publish(EVENTS[event], &body.to_owned());
            if let Some(key) = key {
                publish = publish.key(event_key(key));
            }
            if dedupe {
                publish = publish.dedupe(body);
            }
            match simulation::block_on(publish) {
                Ok(_) => return self.ledger.is_published(body),
                Err(error) => self.expect_store_error("an event", &error),
            }
        }
    }

    /// Settles one of the deferreds whose tokens were handed out.
    fn settle_some(&self, which: u64, rejects: bool) {
        let tokens = self.ledger.book().news.tokens.clone();
        if let Some(number) = which.checked_rem(tokens.len() as u64) {
            let (place, token) = tokens[number as usize].clone();
            self.settle(place, token, rejects);
        }
    }

    /// Settles a deferred.
    pub(crate) fn settle(&self, place: Place, token: Token, rejects: bool) {
        let settled = bodies::settle(&self.ledger, &self.client, &self.name, place, token, rejects);
        simulation::block_on(settled);
    }

    /// Does something with the run of a program, if it is there.
    pub(crate) fn with_run(&self, program: usize, does: impl FnOnce(&RunHandle<u64>)) {
        let target = key(program);
        let known = self.ledger.book().runs.get(&program).copied();
        let found = self.client.get_typed(PERFORM, ("perform", target.as_str()));
        let run = match simulation::block_on(found) {
            Ok(Some(run)) => run,
            Ok(None) => {
                if let Some(known) = known.filter(|run| !self.ledger.may_be_deleted(*run)) {
                    let what = format!("`{target}` was run {known}, and is said not to be there");
                    self.ledger.violate(Promise::ToldStaysTrue, what);
                }
                return;
            }
            Err(error) => return self.expect_store_error("a look", &error),
        };
        self.found(program, &run);
        does(&run);
    }

    /// Waits for the end of a run, and writes down what it is.
    pub(crate) fn hear_result(&self, run: &RunHandle<u64>) {
        loop {
            let told = match simulation::block_on(run.result()) {
                Ok(value) => Told::Completed(value),
                Err(RunError::Failed { .. }) => Told::Failed,
                Err(RunError::Cancelled { .. }) => Told::Cancelled,
                Err(RunError::Client(ClientError::UnknownRun { .. }))
                    if self.ledger.may_be_deleted(run.id()) =>
                {
                    return;
                }
                Err(RunError::Client(error)) => {
                    self.expect_store_error("a result", &error);
                    simulation::sleep(self.plan.lease);
                    continue;
                }
                Err(error) => {
                    let what = format!("the result of run {} is {error:?}", run.id());
                    return self.ledger.violate(Promise::ToldStaysTrue, what);
                }
            };
            note(|| format!("run {} ended with {told:?}", run.id()));
            return self.ledger.book().told.push((run.id(), told));
        }
    }

    /// Nothing else goes wrong for a client.
    pub(crate) fn expect_store_error(&self, what: &str, error: &ClientError) {
        note(|| format!("{what} fails: {error:?}"));
        if !matches!(error, ClientError::Store(_)) {
            let what = format!("{what} by {} fails: {error:?}", self.name);
            self.ledger.violate(Promise::ToldStaysTrue, what);
        }
    }
}
