//! Wake-ups between the processes that share a store.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] =
    checks![others_are_woken_and_the_waker_is_not, a_dropped_guard_is_not_called,];

/// Long enough for a wake-up on a busy machine; short, where none should come.
const SOON: Duration = Duration::from_secs(60);

const NEVER: Duration = Duration::from_millis(50);

fn listen(world: &World, me: Uuid) -> (WakeGuard, mpsc::Receiver<Vec<RunNo>>) {
    let (sender, receiver) = mpsc::channel();
    let wake: WakeFn = Arc::new(move |runs| drop(sender.send(runs.to_vec())));
    (world.store.on_wake(me, wake).expect("on_wake"), receiver)
}

fn others_are_woken_and_the_waker_is_not(world: &World) {
    let second = register(&*world.store, "second", START);
    let (_first_guard, first) = listen(world, world.fence.runner);
    let (_second_guard, second_calls) = listen(world, second.runner);
    let runs = [RunNo(3), RunNo(i64::MAX)];
    world.store.wake_others(Some(world.fence.runner), &runs);
    assert_eq!(second_calls.recv_timeout(SOON), Ok(runs.to_vec()));
    assert!(first.recv_timeout(NEVER).is_err());
    world.store.wake_others(None, &[]);
    assert_eq!(first.recv_timeout(SOON), Ok(Vec::new()));
    assert_eq!(second_calls.recv_timeout(SOON), Ok(Vec::new()));
}

fn a_dropped_guard_is_not_called(world: &World) {
    let (guard, calls) = listen(world, world.fence.runner);
    drop(guard);
    world.store.wake_others(None, &[RunNo(1)]);
    assert!(calls.recv_timeout(NEVER).is_err());
}
