//! What the scenarios have in common: waiting for something without a fixed pause, and being a
//! second process.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used)]

use std::{
    future::Future,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use everstep::{RunHandle, RunInfo, RunStatus};

/// How long anything here may take before a test gives up. Far longer than it ever does.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Longer than the lease of an engine whose settings say nothing about it: where a store cannot tell that
/// a process has died, the next one takes over after this.
pub(crate) const LEASE_IS_OVER: Duration = Duration::from_secs(11);

/// Asks again and again until there is an answer.
///
/// # Panics
///
/// If there is none within [`LIMIT`].
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, ask: impl Fn() -> F) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(begun.elapsed() < LIMIT, "waited too long for {what}");
        // A thread of its own sleeps, so that this works on a runtime without timers.
        let (sender, slept) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(2));
            _ = sender.send(());
        });
        _ = slept.await;
    }
}

/// Waits until what is stored about a run is as it should be, and gives it.
///
/// # Panics
///
/// If it is not within [`LIMIT`], with what is stored instead.
pub(crate) async fn until_info<O>(
    run: &RunHandle<O>,
    what: &str,
    is_so: impl Fn(&RunInfo) -> bool,
) -> RunInfo {
    let begun = Instant::now();
    until(what, async || {
        let info = run.info().await.unwrap();
        let is_late = begun.elapsed() > LIMIT * 9 / 10;
        assert!(!is_late || is_so(&info), "waited too long for {what}: {info:#?}");
        is_so(&info).then_some(info)
    })
    .await
}

/// Waits until the run has this status, and gives what is stored about it.
pub(crate) async fn until_status<O>(run: &RunHandle<O>, status: RunStatus) -> RunInfo {
    let what = format!("run {} to be {status}", run.id());
    until_info(run, &what, |info| info.status == status).await
}

/// Waits until the run is paused, and gives the reason.
pub(crate) async fn until_paused<O>(run: &RunHandle<O>) -> String {
    until_status(run, RunStatus::Paused).await.waiting.expect("a paused run has a reason")
}

/// Waits until the run has ended or is paused, and gives what is stored about it.
pub(crate) async fn until_at_rest<O>(run: &RunHandle<O>) -> RunInfo {
    until(&format!("run {} to end", run.id()), async || {
        let info = run.info().await.unwrap();
        (info.status.is_terminal() || info.status == RunStatus::Paused).then_some(info)
    })
    .await
}

/// A runtime with several threads, outside of any other.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// The name of a test, as this program calls it, by its `module_path!()` and its function.
pub(crate) fn name_of(module: &str, test: &str) -> String {
    match module.split_once("::") {
        Some((_, module)) => format!("{module}::{test}"),
        None => test.to_owned(),
    }
}

/// Starts this test binary again, to run only the test of this name in this `module_path!()`, with a
/// variable that tells it that it is the second process. Its standard output is piped.
pub(crate) fn second_process(module: &str, test: &str, variable: &str, value: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([&name_of(module, test), "--exact", "--nocapture", "--test-threads=1"])
        .env(variable, value)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Polls a future on this thread, with no runtime at all.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut cx = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut cx) {
            std::task::Poll::Ready(value) => return value,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}
