//! The past of a run: everything that its code has taken for good.
//!
//! A cold replay takes less than that. It jumps to the last iteration of each loop, whose state depends
//! on everything that the iterations before it have taken. So they are found among the stays: the one
//! that has come to that state has taken it.

use std::collections::{BTreeMap, BTreeSet};

use super::ledger::{Got, Taken};

/// The last iteration of each loop in these.
pub(crate) fn last_iterations(taken: &[Taken]) -> BTreeMap<&str, u64> {
    let mut last = BTreeMap::new();
    for (at, n) in taken.iter().flat_map(Taken::iterations) {
        let last = last.entry(at).or_insert(n);
        *last = n.max(*last);
    }
    last
}

/// What is not inside of an iteration before the last one of its loop, in order.
pub(crate) fn without_earlier<'a>(
    taken: &'a [Taken],
    last: &BTreeMap<&str, u64>,
) -> Vec<&'a Taken> {
    let is_late = |taken: &&Taken| {
        taken.iterations().all(|(at, n)| last.get(at).is_none_or(|last| n >= *last))
    };
    taken.iter().filter(is_late).collect()
}

/// What a generation has taken, with the iterations that a replay jumps over. The order is kept within
/// each iteration alone.
///
/// # Errors
///
/// If no stay has come to the state of a loop: which.
pub(crate) fn whole(replayed: &[Taken], stays: &[Vec<Taken>]) -> Result<Vec<Taken>, String> {
    let mut whole = replayed.to_vec();
    let mut begun: BTreeSet<String> = replayed.iter().filter_map(begins).collect();
    let mut open: Vec<Taken> =
        replayed.iter().filter(|taken| begins(taken).is_some()).cloned().collect();
    while let Some(mark) = open.pop() {
        let Some((at, n)) = mark.iterations().last() else {
            continue;
        };
        let Some(before) = n.checked_sub(1).map(|before| format!("{at}/~{before}")) else {
            continue;
        };
        if !begun.insert(before.clone()) {
            continue;
        }
        let inside = format!("{before}/");
        let is_inside = |taken: &&Taken| taken.at == before || taken.at.starts_with(&inside);
        let has_begun = |taken: &Taken| begins(taken).as_deref() == Some(&before);
        let stays = stays.iter();
        let stays = stays.filter(|stay| stay.contains(&mark) && stay.iter().any(has_begun));
        // One that has only looked for rollbacks finds less in an iteration that was trimmed.
        let stay = stays.max_by_key(|stay| stay.iter().filter(is_inside).count());
        let stay = stay.ok_or_else(|| format!("no stay has come to {mark:?}"))?;
        for taken in stay.iter().filter(is_inside) {
            // Of the loops in it the stay may have begun several iterations.
            if let Some(begun_at) = begins(taken) {
                begun.insert(begun_at);
                open.push(taken.clone());
            }
            whole.push(taken.clone());
        }
    }
    Ok(whole)
}

/// The iteration that begins with this.
fn begins(taken: &Taken) -> Option<String> {
    let (_, name) = taken.at.rsplit_once('/')?;
    (name.starts_with('~') && matches!(taken.got, Got::State(_))).then(|| taken.at.clone())
}
