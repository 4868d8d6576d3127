//! The scheduler by itself, without an engine.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::seam::{self, Leaf, Lock, Monitor, Process};

fn calm() -> Config {
    Config::default()
}

/// A few activities that take turns at a counter.
fn crowd() {
    let counter = Arc::new(Leaf::new(Vec::new()));
    let workers: Vec<_> = (0..5u64)
        .map(|number| {
            let counter = counter.clone();
            let work = move || {
                for _ in 0..4 {
                    seam::point("turn");
                    counter.lock().push(number);
                    seam::sleep(Duration::from_millis(seam::random() % 3), "pause");
                }
            };
            new_process(&format!("p{number}")).spawn("worker", work)
        })
        .collect();
    while !workers.iter().all(SimThread::is_finished) {
        seam::sleep(Duration::from_millis(1), "join");
    }
    note(&format!("order {:?}", *counter.lock()));
}

#[test]
fn one_seed_gives_one_trace_and_other_seeds_give_others() {
    let traces: Vec<_> = (0..20).map(|seed| simulate(seed, calm(), crowd).trace).collect();
    for (seed, trace) in traces.iter().enumerate() {
        assert_eq!(*trace, simulate(seed as u64, calm(), crowd).trace);
    }
    let different: std::collections::HashSet<_> = traces.iter().collect();
    assert_eq!(different.len(), traces.len());
}

#[test]
fn time_moves_only_when_nothing_can_go_on() {
    let report = simulate(1, calm(), || {
        let (begun, calendar) = (seam::now(), seam::wall());
        for _ in 0..100 {
            seam::point("busy");
        }
        assert_eq!(seam::elapsed(begun), Duration::ZERO);
        seam::sleep(Duration::from_secs(3_600), "long");
        assert_eq!(seam::elapsed(begun), Duration::from_secs(3_600));
        let passed = seam::wall().duration_since(calendar).expect("not before");
        assert_eq!(passed, Duration::from_secs(3_600));
    });
    assert_eq!(report.failure, None);
    assert_eq!(report.time, Duration::from_secs(3_600));
}

#[test]
fn a_wait_ends_by_a_notice_or_by_its_time() {
    let report = simulate(2, calm(), || {
        let monitor: Arc<Monitor<u32>> = Arc::default();
        let others = monitor.clone();
        let work = move || {
            seam::sleep(Duration::from_secs(1), "later");
            others.change(|it| *it = 7);
        };
        Process::current().spawn("other", work).expect("thread");
        let begun = seam::now();
        let got = monitor.wait("news", |it| match *it {
            0 => std::ops::ControlFlow::Continue(None),
            it => std::ops::ControlFlow::Break(it),
        });
        assert_eq!((got, seam::elapsed(begun)), (7, Duration::from_secs(1)));
        let until = seam::after(Duration::from_secs(2));
        let mut looks = 0;
        monitor.wait("nothing", |_| {
            looks += 1;
            match seam::elapsed(begun) < Duration::from_secs(3) {
                true => std::ops::ControlFlow::Continue(until),
                false => std::ops::ControlFlow::Break(()),
            }
        });
        assert_eq!(looks, 2);
    });
    assert_eq!(report.failure, None);
}

#[test]
fn a_lock_is_held_across_points_and_a_leaf_is_not() {
    let report = simulate(3, calm(), || {
        let lock: Arc<Lock> = Arc::default();
        let inside = Arc::new(AtomicU64::new(0));
        let workers = [(); 3].map(|()| {
            let (lock, inside) = (lock.clone(), inside.clone());
            let work = move || {
                for _ in 0..5 {
                    let _held = lock.lock("the lock");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    seam::point("inside");
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
            };
            Process::current().spawn("worker", work).expect("thread")
        });
        while !workers.iter().all(seam::Thread::is_finished) {
            seam::sleep(Duration::from_millis(1), "join");
        }
    });
    assert_eq!(report.failure, None);
    let report = simulate(3, calm(), || {
        let leaf = Leaf::new(());
        let _held = leaf.lock();
        seam::point("here");
    });
    let failure = report.failure.expect("it has failed");
    assert!(failure.contains("a leaf lock is held across `here`"), "{failure}");
}

#[test]
fn a_deadlock_names_everybody_and_where_they_wait() {
    let report = simulate(4, calm(), || {
        let locks: Arc<[Lock; 2]> = Arc::default();
        let other = locks.clone();
        let work = move || {
            let _second = other[1].lock("second");
            seam::sleep(Duration::from_millis(1), "holds the second");
            let _first = other[0].lock("first, by the other");
        };
        new_process("b").spawn("other", work);
        let _first = locks[0].lock("first");
        seam::sleep(Duration::from_millis(1), "holds the first");
        let _second = locks[1].lock("second, by main");
    });
    let failure = report.failure.expect("it has failed");
    assert_eq!(
        failure,
        "deadlock: main main at `second, by main`; b other at `first, by the other`"
    );
}

/// Everything that a killed process holds is dropped, nothing of it goes on, and its code can tell.
#[test]
fn a_kill_unwinds_every_activity_of_its_process_and_no_other() {
    struct OnDrop(Arc<AtomicU64>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            assert!(seam::is_dead());
            // Returns at once: nobody may wait here any more.
            seam::sleep(Duration::from_secs(1), "never");
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let faults: Faults = Box::new(|at, _| (at.label == "fatal").then_some(Fault::Kill));
    let config = Config { faults, ..Config::default() };
    let (dropped, survived) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (its, theirs) = (dropped.clone(), survived.clone());
    let report = simulate(5, config, move || {
        let (victim, other) = (new_process("victim"), new_process("other"));
        for number in 0..3 {
            let on_drop = OnDrop(its.clone());
            let work = move || {
                let _on_drop = on_drop;
                // A body may catch the unwinding: it gets as far as the next point.
                let caught = catch_unwind(|| seam::sleep(Duration::from_secs(9), "asleep"));
                assert!(caught.is_err());
                seam::point("after");
                unreachable!("it was killed");
            };
            victim.spawn(&format!("thread {number}"), work);
        }
        let work = || seam::point("fatal");
        victim.spawn("last", work);
        let work = move || {
            seam::sleep(Duration::from_secs(20), "asleep");
            theirs.fetch_add(1, Ordering::SeqCst);
        };
        other.spawn("thread", work);
        seam::sleep(Duration::from_secs(30), "watch");
    });
    assert_eq!(report.failure, None);
    assert_eq!((dropped.load(Ordering::SeqCst), report.kills), (3, 1));
    assert_eq!(survived.load(Ordering::SeqCst), 1);
}

#[test]
fn a_stall_of_a_process_stops_all_of_it_and_nobody_else() {
    let stall =
        Fault::StallProcess { lasts: Duration::from_secs(10), spread: Duration::from_secs(5) };
    let mut stalled = false;
    let faults: Faults = Box::new(move |at, _| {
        let now = at.label == "stall" && !std::mem::replace(&mut stalled, true);
        now.then_some(stall)
    });
    let config = Config { faults, ..Config::default() };
    let report = simulate(6, config, || {
        let (slow, quick) = (new_process("slow"), new_process("quick"));
        let begun = seam::now();
        let work = move |is_slow: bool| {
            move || {
                seam::sleep(Duration::from_secs(1), "asleep");
                let took = seam::elapsed(begun);
                match is_slow {
                    true => assert!((10..=15).contains(&took.as_secs()), "{took:?}"),
                    false => assert_eq!(took.as_secs(), 1),
                }
            }
        };
        slow.spawn("one", work(true));
        quick.spawn("one", work(false));
        slow.spawn("two", || seam::point("stall"));
        seam::sleep(Duration::from_secs(60), "watch");
    });
    assert_eq!((report.failure, report.stalls), (None, 1));
}

#[test]
fn a_future_is_waited_for_on_the_seam() {
    let report = simulate(7, calm(), || {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let work = move || {
            seam::sleep(Duration::from_secs(5), "later");
            sender.send(3).expect("it is waited for");
        };
        Process::current().spawn("sender", work).expect("thread");
        assert_eq!(seam::block_on(receiver, "receiver"), Ok(3));
    });
    assert_eq!((report.failure, report.time), (None, Duration::from_secs(5)));
}

#[test]
fn each_process_goes_by_its_own_clocks() {
    let report = simulate(8, calm(), || {
        let fast = new_process("fast");
        fast.set_clocks(Clocks {
            monotonic_ppm: 10_000,
            calendar_ppm: -10_000,
            calendar_ahead_ms: 500,
        });
        let right = seam::wall();
        fast.spawn("thread", move || {
            let begun = seam::now();
            seam::sleep(Duration::from_secs(101), "by its clock");
            assert_eq!(seam::elapsed(begun), Duration::from_secs(101));
            assert_eq!(time(), Duration::from_secs(100));
            let passed = seam::wall().duration_since(right).expect("not before");
            assert_eq!(passed, Duration::from_millis(99_500));
            let until = seam::after(Duration::from_secs(101));
            let signal = Signal::default();
            assert!(!signal.wait(signal.seen(), until, "until its time"));
            assert!(until <= seam::after(Duration::ZERO));
            assert_eq!(time(), Duration::from_secs(200));
        });
        seam::sleep(Duration::from_secs(300), "watch");
    });
    assert_eq!(report.failure, None);
}

#[test]
fn a_calendar_that_is_set_moves_no_other_clock() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let faults: Faults = Box::new(|at, _| {
        let (ahead_ms, lasts) = match at.label {
            "glitch" => (7_200_000, Some(Duration::from_secs(5))),
            "set" => (-3_600_000, None),
            _ => return None,
        };
        Some(Fault::SetCalendar { ahead_ms, lasts })
    });
    let config = Config { faults, ..Config::default() };
    let report = simulate(9, config, || {
        let (right, other) = (seam::wall(), new_process("other"));
        other.spawn("thread", move || {
            let begun = seam::now();
            seam::point("set");
            assert_eq!(seam::wall(), right - HOUR);
            seam::point("glitch");
            assert_eq!(seam::wall(), right + HOUR * 2);
            assert_eq!(seam::elapsed(begun), Duration::ZERO);
            seam::sleep(Duration::from_secs(5), "it is over");
            assert_eq!(seam::wall(), right - HOUR + Duration::from_secs(5));
        });
        seam::sleep(Duration::from_secs(10), "watch");
        assert_eq!(seam::wall(), right + Duration::from_secs(10));
    });
    assert_eq!((report.failure, report.clock_jumps), (None, 2));
}

/// Reads of clocks are points, except under a leaf; an activity that goes on by itself at every point
/// is never left for another.
#[test]
fn what_a_point_does_is_configured() {
    let order = |clock_points, goes_on| {
        let config = Config { clock_points, goes_on, trace: Trace::Off, ..Config::default() };
        let order: Arc<Leaf<Vec<u32>>> = Arc::default();
        let seen = order.clone();
        let report = simulate(10, config, move || {
            let workers = [1, 2].map(|number| {
                let order = order.clone();
                new_process("p").spawn("worker", move || {
                    for _ in 0..20 {
                        let mut order = order.lock();
                        order.push(number);
                        seam::now();
                        drop(order);
                        seam::now();
                    }
                })
            });
            while !workers.iter().all(SimThread::is_finished) {
                seam::sleep(Duration::from_millis(1), "join");
            }
        });
        assert_eq!((report.failure, report.trace.as_str()), (None, ""));
        let seen = seen.lock();
        seen.windows(2).filter(|pair| pair[0] != pair[1]).count()
    };
    assert_eq!(order(0, 0), 1);
    assert!(order(1_000, 0) > 5);
    assert_eq!(order(1_000, 1_000), 1);
}
