//! The normal form of a state: absolute numbers that make no difference are taken out.
//!
//! Epochs, versions and the numbers of batches are only ever compared with others of the same row, run
//! or lane, and leases with the time. States that agree in the outcome of all these comparisons have
//! the same future, and the search needs to follow only one of them. Traces show the real numbers.

use crate::state::{RunnerNo, ShardNo, State};

/// The state with epochs replaced by their order within each row, versions and numbers counted from
/// what is stored, and leases that are over all alike.
pub(crate) fn form(state: &State) -> State {
    let mut state = state.clone();
    for runner in RunnerNo::all() {
        rank_epochs(&mut state, runner);
    }
    end_leases(&mut state);
    count_from_stored(&mut state);
    state.batches.sort_unstable();
    state
}

/// All epochs of one runner, wherever they stand.
fn epochs_of(state: &mut State, no: RunnerNo) -> impl Iterator<Item = &mut u8> {
    let row = state.rows[no.index()].iter_mut().map(|row| &mut row.epoch);
    let owners = state.shards.iter_mut().flatten();
    let owners = owners.filter(move |owner| owner.runner == no);
    let batches = state.batches.iter_mut();
    let batches = batches.filter(move |batch| batch.runner == no);
    let take = state.takes[no.index()].iter_mut().map(|take| &mut take.fence);
    let beat = state.beats[no.index()].iter_mut().map(|beat| &mut beat.fence);
    let runner = &mut state.runners[no.index()];
    let busy = runner.busy.iter_mut().flatten();
    let queued = runner.queued.iter_mut().flatten();
    row.chain(owners.map(|owner| &mut owner.epoch))
        .chain(batches.map(|batch| &mut batch.fence))
        .chain(take)
        .chain(beat)
        .chain(runner.fence.iter_mut())
        .chain(busy.map(|busy| &mut busy.fence))
        .chain(queued.map(|queued| &mut queued.fence))
}

fn rank_epochs(state: &mut State, no: RunnerNo) {
    let seen = epochs_of(state, no).fold(0u32, |seen, epoch| seen | 1 << *epoch);
    for epoch in epochs_of(state, no) {
        let below = seen & ((1 << *epoch) - 1);
        *epoch = below.count_ones() as u8;
    }
}

/// No clock is behind the store's, so what is over by that is over for all.
fn end_leases(state: &mut State) {
    for row in state.rows.iter_mut().flatten() {
        row.lease_until = row.lease_until.max(state.now);
        if row.lease_until == state.now {
            row.silent = 0;
        }
    }
    for runner in &mut state.runners {
        if runner.fence.is_some() {
            runner.valid_until = runner.valid_until.max(state.now);
        }
    }
}

fn count_from_stored(state: &mut State) {
    for shard in ShardNo::all() {
        let version = std::mem::take(&mut state.versions[shard.index()]);
        for runner in &mut state.runners {
            if let Some(held) = &mut runner.held[shard.index()] {
                *held = held.wrapping_sub(version);
            }
            if let Some(read) = &mut runner.reads[shard.index()] {
                read.version = read.version.wrapping_sub(version);
            }
            if let Some(queued) = &mut runner.queued[shard.index()] {
                queued.base = queued.base.wrapping_sub(version);
            }
            if let Some(busy) = &mut runner.busy[shard.index()] {
                busy.base = busy.base.wrapping_sub(version);
            }
        }
        let batches = state.batches.iter_mut();
        for batch in batches.filter(|batch| batch.shard == shard) {
            batch.base = batch.base.wrapping_sub(version);
        }
    }
    for batch in &mut state.batches {
        let lane = state.lanes[batch.runner.index()][batch.shard.index()];
        if let Some(epoch) = &mut batch.lane {
            *epoch = epoch.wrapping_sub(lane.epoch);
            batch.number = batch.number.wrapping_sub(lane.last);
        }
    }
    for no in RunnerNo::all() {
        for shard in ShardNo::all() {
            let lane = std::mem::take(&mut state.lanes[no.index()][shard.index()]);
            if let Some(busy) = &mut state.runners[no.index()].busy[shard.index()] {
                busy.number = busy.number.wrapping_sub(lane.last);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::Variant;

    #[test]
    fn raised_epoch_is_not_lost_in_the_normal_form() {
        let state = Variant::ALL[0].start();
        let mut raised = state.clone();
        let mut both = state.clone();
        let row = raised.rows[0].as_mut().expect("the first is registered");
        row.epoch += 1;
        epochs_of(&mut both, RunnerNo(0)).for_each(|epoch| *epoch += 1);
        assert_ne!(form(&state), form(&raised));
        assert_eq!(form(&state), form(&both));
    }
}
