//! Makes a life smaller that has broken a promise: fewer processes, operations and faults, as long as a
//! smaller life breaks the same promise.
//!
//! It works on the plan as JSON, so that it knows nothing of what operations and deeds there are: an
//! element of a list is left out, an operation is replaced by one of the lists inside of it, a rate
//! becomes 0, a time becomes short. What is no plan any more is not tried.
//!
//! A smaller plan is scheduled otherwise from its first point on, so each is lived with a few seeds.

use std::{
    fmt,
    panic::{self, AssertUnwindSafe, catch_unwind},
};

use everstep::testing::{internal, simulation::Trace};
use serde_json::Value;

use crate::{
    life::{self, Options, Verdict},
    oracle::Promise,
    plan::Plan,
};

/// How many lives are lived at most to make one smaller.
const LIVES_MAX: usize = 600;

/// What a time becomes. Longer than the shortest that an engine accepts of any setting: without engines no
/// run ends, and that would be taken for the broken promise.
const SHORT_NANOS: u32 = 10_000_000;

/// How many seeds a smaller plan is tried with.
const SEEDS: u64 = 3;

/// A smaller life that breaks the same promise.
pub(crate) struct Smaller {
    pub(crate) plan: Plan,
    pub(crate) verdict: Verdict,
    /// How many lives it took.
    pub(crate) lives: usize,
}

impl fmt::Display for Smaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Smaller { plan, verdict, lives } = self;
        writeln!(f, "\nmade smaller in {lives} lives:\n\n{plan}\n{}", verdict.report.trace)?;
        for violation in &verdict.violations {
            writeln!(f, "{violation}")?;
        }
        let plan = serde_json::to_string(plan).expect("a plan is always JSON");
        writeln!(f, "\nto live it again, give `--plan` a file with this line:\n{plan}")
    }
}

/// Makes the life of this plan smaller, which has broken this promise.
pub(crate) fn shrink(plan: &Plan, promise: Promise, options: Options) -> Smaller {
    let options = Options { trace: Trace::Off, ..options };
    let mut search = Search {
        best: serde_json::to_value(plan).expect("a plan is always JSON"),
        seed: plan.seed,
        promise,
        options,
        lives: 0,
    };
    let hook = panic::take_hook();
    // A plan that makes no sense may panic.
    panic::set_hook(Box::new(|_| {}));
    search.run();
    panic::set_hook(hook);
    let plan: Plan = serde_json::from_value(search.best).expect("it was one before it was lived");
    let verdict = life::live(plan.clone(), Options { trace: Trace::Events, ..options });
    Smaller { plan, verdict, lives: search.lives }
}

struct Search {
    best: Value,
    seed: u64,
    promise: Promise,
    options: Options,
    lives: usize,
}

impl Search {
    fn run(&mut self) {
        loop {
            let mut is_smaller = false;
            let mut edits = edits(&self.best).into_iter();
            while let Some(edit) = edits.next()
                && self.lives < LIVES_MAX
            {
                if self.accept(&edit) {
                    is_smaller = true;
                    // The others are places in what it was before; those that are left are found again.
                    let tried = edits.len();
                    let again = self::edits(&self.best);
                    let skipped = again.len().saturating_sub(tried);
                    edits = again.into_iter();
                    edits.by_ref().take(skipped).for_each(drop);
                }
            }
            if !is_smaller || self.lives >= LIVES_MAX {
                return;
            }
        }
    }

    /// Whether the plan with this edit breaks the promise, too: then it is the best one.
    fn accept(&mut self, edit: &Edit) -> bool {
        let Some(mut value) = edit.apply(&self.best) else {
            return false;
        };
        for number in 0..SEEDS {
            // The last one that was good is the most promising.
            if number > 0 {
                value["seed"] = internal::hash(self.seed, &number.to_le_bytes()).into();
            }
            let Ok(plan) = serde_json::from_value::<Plan>(value.clone()) else {
                return false;
            };
            self.lives += 1;
            let options = self.options;
            let verdict = catch_unwind(AssertUnwindSafe(|| life::live(plan, options)));
            let violations = verdict.map(|it| it.violations).unwrap_or_default();
            if violations.iter().any(|it| it.promise == self.promise) {
                self.best = value;
                return true;
            }
        }
        false
    }
}

/// One way to make a plan smaller, at a place in it.
#[derive(Clone, Debug)]
enum Edit {
    /// Leaves out so many elements of a list, from this one on.
    Cut { list: String, from: usize, count: usize },
    /// Puts a list in the place of the element that it is inside of.
    Lift { list: String, at: usize, inner: String },
    /// Puts this in the place of something else.
    Set { place: String, value: Value },
}

impl Edit {
    fn apply(&self, plan: &Value) -> Option<Value> {
        let mut plan = plan.clone();
        match self {
            Edit::Cut { list, from, count } => {
                let list = plan.pointer_mut(list)?.as_array_mut()?;
                let to = (from + count).min(list.len());
                list.drain((*from).min(to)..to);
            }
            Edit::Lift { list, at, inner } => {
                let list = plan.pointer_mut(list)?.as_array_mut()?;
                let inner = list.get(*at)?.pointer(inner)?.as_array()?.clone();
                list.splice(at..=at, inner);
            }
            Edit::Set { place, value } => *plan.pointer_mut(place)? = value.clone(),
        }
        Some(plan)
    }
}

/// Everything that may be tried with a plan, the largest cuts first.
fn edits(plan: &Value) -> Vec<Edit> {
    let mut edits = Vec::new();
    gather(plan, "", &mut edits);
    edits.sort_by_key(|edit| match edit {
        Edit::Cut { count, .. } => usize::MAX - count,
        Edit::Lift { .. } => usize::MAX,
        Edit::Set { .. } => usize::MAX,
    });
    edits
}

fn gather(value: &Value, at: &str, edits: &mut Vec<Edit>) {
    match value {
        Value::Array(list) => {
            cuts(list, at, edits);
            for (number, element) in list.iter().enumerate() {
                let mut inner = Vec::new();
                lists_in(element, "", &mut inner);
                let lift = |inner| Edit::Lift { list: at.to_owned(), at: number, inner };
                edits.extend(inner.into_iter().map(lift));
                gather(element, &format!("{at}/{number}"), edits);
            }
        }
        Value::Object(_) if is_time(value) => {
            // None is a length that something would have to be longer than.
            let is_free = !at.starts_with("/lease") && !at.starts_with("/sky/");
            if is_free || at == "/sky/latency_max" {
                let short = serde_json::json!({ "secs": 0, "nanos": SHORT_NANOS });
                if *value != short && value["secs"].as_u64() != Some(0) {
                    edits.push(Edit::Set { place: at.to_owned(), value: short });
                }
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                let at = format!("{at}/{name}");
                let is_rate = at.starts_with("/sky/") || at.contains("/clocks/");
                if is_rate && field.is_number() && field.as_i64() != Some(0) {
                    edits.push(Edit::Set { place: at.clone(), value: 0.into() });
                }
                // Where it may be left out.
                if field.is_object() && at.starts_with("/engines/") {
                    edits.push(Edit::Set { place: at.clone(), value: Value::Null });
                }
                gather(field, &at, edits);
            }
        }
        _ => {}
    }
}

/// What may be left out of a list. Others name a program by its place, so it is left out at the end
/// alone; and a life has an engine.
fn cuts(list: &[Value], at: &str, edits: &mut Vec<Edit>) {
    let length = list.len();
    let mut count = length;
    while count > 0 {
        let mut froms: Vec<usize> = (0..length).step_by(count).collect();
        if at == "/programs" {
            froms = vec![length - count];
        }
        for from in froms {
            let is_all = count == length;
            if !(is_all && (at == "/engines" || at == "/programs")) {
                edits.push(Edit::Cut { list: at.to_owned(), from, count });
            }
        }
        count /= 2;
    }
}

/// The places of the lists in an element, but not of those inside of another element.
fn lists_in(value: &Value, at: &str, lists: &mut Vec<String>) {
    match value {
        Value::Array(list) => {
            if list.iter().any(Value::is_object) {
                return lists.push(at.to_owned());
            }
            for (number, inner) in list.iter().enumerate() {
                lists_in(inner, &format!("{at}/{number}"), lists);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                lists_in(field, &format!("{at}/{name}"), lists);
            }
        }
        _ => {}
    }
}

/// Whether this is a time, as it is written.
fn is_time(value: &Value) -> bool {
    let fields = value.as_object();
    fields.is_some_and(|it| it.len() == 2 && it.contains_key("secs") && it.contains_key("nanos"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A life was made smaller by a visibility of a millisecond, which no engine accepts: none started, no
    /// run ended, and that was the promise that the life had broken.
    #[test]
    fn engines_accept_every_time_that_is_made_short() {
        crate::fleet::pin_to_core(0);
        let drawn = (0..).map(Plan::draw);
        let plan = drawn.into_iter().find(|plan| plan.queue.is_some()).expect("some have one");
        let mut value = serde_json::to_value(&plan).expect("a plan is always JSON");
        let all = edits(&value);
        let times = all.iter().filter(|edit| match edit {
            Edit::Set { value, .. } => is_time(value),
            _ => false,
        });
        for edit in times {
            value = edit.apply(&value).expect("its place is there");
        }
        let plan: Plan = serde_json::from_value(value).expect("times alone were changed");
        let options = Options { trace: Trace::Events, ..Options::default() };
        let trace = life::live(plan, options).report.trace;
        assert!(trace.contains("the engine has started"));
        assert!(!trace.contains("the engine does not start: Settings"), "{trace}");
    }

    /// A promise that a life breaks whenever it has a second program that listens, whatever else there is.
    #[test]
    fn a_plan_is_cut_down_to_what_matters() {
        let plan = serde_json::json!({
            "seed": 7,
            "engines": [{ "stays": { "secs": 9, "nanos": 0 } }, {}],
            "programs": [
                { "ops": [{ "Step": { "lasts": { "secs": 5, "nanos": 1 } } }] },
                { "ops": [{ "Join": { "branches": [[{ "Sleep": 1 }], [{ "Listen": 2 }]] } }] },
                { "ops": [] },
            ],
            "sky": { "kills": 50, "calm_after": { "secs": 30, "nanos": 0 } },
        });
        let breaks = |plan: &Value| {
            let second = plan.pointer("/programs/1/ops").map(ToString::to_string);
            second.is_some_and(|second| second.contains("Listen"))
        };
        let mut best = plan;
        while let Some(smaller) = edits(&best)
            .iter()
            .filter_map(|edit| edit.apply(&best))
            .find(|plan| breaks(plan) && plan.to_string().len() < best.to_string().len())
        {
            best = smaller;
        }
        let expected = serde_json::json!({
            "seed": 7,
            "engines": [{}],
            "programs": [{ "ops": [] }, { "ops": [{ "Listen": 2 }] }],
            "sky": { "kills": 0, "calm_after": { "secs": 30, "nanos": 0 } },
        });
        assert_eq!(best, expected);
    }
}
