//! Events and deferreds: what was published, settled and waited for, and whether it agrees.

use std::collections::{BTreeMap, BTreeSet};

use everstep::{ClientError, Resolved, RunId, Token, store::Store};

use super::{
    Promise,
    ending::{Judgement, is_fork},
    ledger::{Got, Ledger, Place, Taken, note},
};
use crate::work::events::{EVENTS, NEWS, goes_to_one};

/// What a deferred was settled with.
pub(crate) type Verdict = Result<String, String>;

/// What is written down of events and deferreds, with the order in which it happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct News {
    clock: u64,
    publications: BTreeMap<String, Publication>,
    /// When a wait was first made.
    waits: BTreeMap<Place, u64>,
    /// When an event was first taken by a wait.
    takes: BTreeMap<Place, u64>,
    /// The tokens that were handed out.
    pub(crate) tokens: Vec<(Place, Token)>,
    settlings: Vec<Settling>,
}

/// An event that was to be published.
#[derive(Clone, Debug)]
struct Publication {
    event: usize,
    key: Option<u32>,
    /// When its publisher was told that it is.
    told: Option<u64>,
}

/// A value for a deferred.
#[derive(Clone, Debug)]
struct Settling {
    place: Place,
    verdict: Verdict,
    /// What its giver was told, and when.
    told: Option<(Settled, u64)>,
}

/// What became of a value for a deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It counts.
    First,
    /// Another one does.
    Already,
    /// Its run takes none any more.
    Refused,
    /// The giver was not told.
    Unknown,
}

impl Settled {
    pub(crate) fn of(answer: Result<Resolved, ClientError>) -> Settled {
        match answer {
            Ok(Resolved::First) => Settled::First,
            Ok(Resolved::Already { .. }) => Settled::Already,
            Err(
                ClientError::Finished { .. }
                | ClientError::WrongStatus { .. }
                | ClientError::OldToken { .. }
                | ClientError::UnknownRun { .. },
            ) => Settled::Refused,
            Err(_) => Settled::Unknown,
        }
    }
}

impl News {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The tokens of deferreds of which nobody knows that they are settled.
    pub(crate) fn open_tokens(&self) -> Vec<(Place, Token)> {
        let is_settled = |place: &Place| {
            let mut settlings = self.settlings.iter().filter(|it| it.place == *place);
            settlings.any(|it| it.told.is_some_and(|(told, _)| told != Settled::Unknown))
        };
        let mut open = self.tokens.clone();
        open.retain(|(place, _)| !is_settled(place));
        open.dedup();
        open
    }
}

impl Ledger {
    /// An event is about to be published.
    pub(crate) fn publishes(&self, event: usize, key: Option<u32>, body: &str) {
        let mut book = self.book();
        let publication = Publication { event, key, told: None };
        book.news.publications.entry(body.to_owned()).or_insert(publication);
    }

    /// Its publisher was told that it is published.
    pub(crate) fn is_published(&self, body: &str) {
        let mut book = self.book();
        let now = book.news.tick();
        if let Some(publication) = book.news.publications.get_mut(body) {
            publication.told.get_or_insert(now);
        }
    }

    /// The code makes a wait.
    pub(crate) fn wait_begins(&self, place: Place) {
        let mut book = self.book();
        let now = book.news.tick();
        book.news.waits.entry(place).or_insert(now);
    }

    /// A wait has taken an event.
    pub(crate) fn event_is_taken(&self, place: &Place) {
        let mut book = self.book();
        let now = book.news.tick();
        book.news.takes.entry(place.clone()).or_insert(now);
    }

    /// A body has the token of a deferred.
    pub(crate) fn hands_out(&self, place: &Place, token: &Token) {
        let mut book = self.book();
        if !book.news.tokens.iter().any(|(other, _)| other == place) {
            book.news.tokens.push((place.clone(), token.clone()));
        }
    }

    /// A deferred is about to be settled; the number of that.
    pub(crate) fn settles(&self, place: Place, verdict: Verdict) -> usize {
        note(|| format!("{place} is settled with {verdict:?}"));
        let mut book = self.book();
        book.news.settlings.push(Settling { place, verdict, told: None });
        book.news.settlings.len() - 1
    }

    pub(crate) fn is_settled(&self, index: usize, settled: Settled) {
        let mut book = self.book();
        let now = book.news.tick();
        let settling = &mut book.news.settlings[index];
        settling.told = Some((settled, now));
        note(|| format!("{}: {:?} was {settled:?}", settling.place, settling.verdict));
    }
}

fn place_of(run: RunId, generation: u32, taken: &Taken) -> Place {
    Place { run, generation, at: taken.at.clone() }
}

/// An event that a wait has taken for good.
struct Seen<'a> {
    place: Place,
    event: usize,
    matching: Option<u32>,
    body: &'a str,
}

impl Judgement<'_> {
    /// Events are seen by those whom they are for, once, and none is lost.
    pub(super) fn check_events(&self) {
        let news = self.ledger.book().news.clone();
        let seen = self.seen();
        for it in &seen {
            self.check_is_for(&news, it);
        }
        self.check_once(&news, &seen);
        if !self.may_be_forgotten() {
            self.check_none_is_lost(&seen);
        }
        for (run, past) in self.pasts.iter().filter(|(run, _)| self.is_original(**run)) {
            self.check_not_missed(&news, *run, past);
        }
    }

    /// What a fork has seen may be taken over from another run.
    fn seen(&self) -> Vec<Seen<'_>> {
        let mut seen = Vec::new();
        let is_fork = |run| self.row(run).is_some_and(is_fork);
        for (run, past) in self.pasts.iter().filter(|(run, _)| !is_fork(**run)) {
            for (generation, taken) in past {
                if let Got::Event { event, matching, body: Some(body) } = &taken.got {
                    let (event, matching) = (*event, *matching);
                    let place = place_of(*run, *generation, taken);
                    seen.push(Seen { place, event, matching, body });
                }
            }
        }
        seen
    }

    fn check_is_for(&self, news: &News, seen: &Seen<'_>) {
        let publication = news.publications.get(seen.body);
        let is_for = publication.is_some_and(|it| {
            it.event == seen.event && seen.matching.is_none_or(|key| it.key == Some(key))
        });
        if !is_for {
            let Seen { place, event, matching, body } = seen;
            let what = format!(
                "{place} took `{body}` for event {event} with the key {matching:?}, which is \
                 {publication:?}"
            );
            self.violate(Promise::EventIsSeenOnce, what);
        }
    }

    /// One of single delivery is seen once by all; a broadcast once by each run, for each key, unless two
    /// waits stood side by side.
    fn check_once(&self, news: &News, seen: &[Seen<'_>]) {
        for (index, one) in seen.iter().enumerate() {
            for other in &seen[index + 1..] {
                // A run that is tried again publishes again.
                if one.body != other.body || self.times_sent(one.body) > 1 {
                    continue;
                }
                let is_same = match goes_to_one(one.event) {
                    true => true,
                    false => {
                        let is_after = |first: &Seen<'_>, then: &Seen<'_>| {
                            let took = news.takes.get(&first.place);
                            let began = news.waits.get(&then.place);
                            took.zip(began).is_some_and(|(took, began)| took < began)
                        };
                        one.place.run == other.place.run
                            && one.matching == other.matching
                            && (is_after(one, other) || is_after(other, one))
                    }
                };
                if is_same {
                    let (body, place, other) = (one.body, &one.place, &other.place);
                    let what = format!("`{body}` was taken by {place} and by {other}");
                    self.violate(Promise::EventIsSeenOnce, what);
                }
            }
        }
    }

    /// Of single delivery, everything that was published was taken, or is kept.
    fn check_none_is_lost(&self, seen: &[Seen<'_>]) {
        for (number, event) in EVENTS.iter().enumerate() {
            let row = self.data.event(event.name());
            let Some(row) = row.expect("the store in memory never fails") else {
                continue;
            };
            if !goes_to_one(number) || row.waiting > 0 {
                continue;
            }
            let bodies = seen.iter().filter(|it| it.event == number).map(|it| it.body);
            let taken = bodies.collect::<BTreeSet<_>>().len() as u64;
            if row.published != taken + row.kept + row.dropped {
                let what = format!("{taken} were taken of {row:?}");
                self.violate(Promise::EventIsNotMissed, what);
            }
        }
    }

    /// A wait that ended with nothing was not made after its event was published.
    fn check_not_missed(&self, news: &News, run: RunId, past: &[(u32, Taken)]) {
        for (generation, taken) in past {
            let Got::Event { event: NEWS, matching, body: None } = &taken.got else {
                continue;
            };
            let is_seen = |body: &String| {
                past.iter().any(|(_, it)| match &it.got {
                    Got::Event { event: NEWS, matching: other, body: Some(seen) } => {
                        other == matching && seen == body
                    }
                    _ => false,
                })
            };
            let place = place_of(run, *generation, taken);
            let Some(began) = news.waits.get(&place) else {
                continue;
            };
            let missed = news.publications.iter().find(|(body, it)| {
                it.event == NEWS
                    && matching.is_none_or(|key| it.key == Some(key))
                    && it.told.is_some_and(|told| told < *began)
                    && !is_seen(body)
            });
            if let Some((body, _)) = missed {
                let what = format!("{place} ended with nothing, and `{body}` was there before");
                self.violate(Promise::EventIsNotMissed, what);
            }
        }
    }

    /// The first value of a deferred counts, for everybody.
    pub(super) fn check_deferreds(&self) {
        let news = self.ledger.book().news.clone();
        let mut places: BTreeSet<&Place> = news.settlings.iter().map(|it| &it.place).collect();
        places.extend(news.tokens.iter().map(|(place, _)| place));
        for place in places {
            self.check_deferred(&news, place);
        }
    }

    fn check_deferred(&self, news: &News, place: &Place) {
        let violate = |what: String| self.violate(Promise::FirstValueCounts, what);
        let settlings: Vec<_> = news.settlings.iter().filter(|it| it.place == *place).collect();
        let told = |settling: &Settling| settling.told.map(|(told, _)| told);
        let firsts: Vec<_> =
            settlings.iter().filter(|it| told(it) == Some(Settled::First)).collect();
        if let [one, other, ..] = &firsts[..] {
            violate(format!("{place}: {:?} and {:?} were first", one.verdict, other.verdict));
        }
        let may_count =
            |it: &Settling| matches!(told(it), None | Some(Settled::First | Settled::Unknown));
        let is_already = |it: &&&Settling| told(it) == Some(Settled::Already);
        if let Some(late) = settlings.iter().find(is_already)
            && !settlings.iter().any(|it| may_count(it))
        {
            violate(format!("{place}: {:?} was not first, and no other is", late.verdict));
        }
        let Some(past) = self.pasts.get(&place.run) else {
            return;
        };
        let inside = format!("{}/", place.at);
        let mut seen: Option<&Verdict> = None;
        for (generation, taken) in past {
            let Got::Verdict(verdict) = &taken.got else {
                continue;
            };
            if *generation != place.generation || !taken.at.starts_with(&inside) {
                continue;
            }
            let at = Place { at: taken.at.clone(), ..place.clone() };
            match (verdict, seen) {
                (None, Some(seen)) => violate(format!("{at} has nothing after {seen:?}")),
                (None, None) => {
                    let began = news.waits.get(&at);
                    let was_there = firsts.iter().find(|it| {
                        it.told.zip(began).is_some_and(|((_, told), began)| told < *began)
                    });
                    if let Some(there) = was_there {
                        violate(format!("{at} has nothing, and {:?} was there", there.verdict));
                    }
                }
                (Some(verdict), before) => {
                    if before.is_some_and(|before| before != verdict) {
                        violate(format!("{at} has {verdict:?} after {before:?}"));
                    }
                    let giver = settlings.iter().find(|it| it.verdict == *verdict);
                    if !giver.is_some_and(|it| may_count(it)) {
                        violate(format!("{at} has {verdict:?} of {giver:?}"));
                    }
                    if let Some(first) = firsts.iter().find(|it| it.verdict != *verdict) {
                        violate(format!("{at} has {verdict:?}, and {first:?} was first"));
                    }
                    seen = Some(verdict);
                }
            }
        }
    }
}
