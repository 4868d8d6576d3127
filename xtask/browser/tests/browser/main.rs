//! The dashboard in a real browser: `cargo xtask browser [NAME..]`.
//!
//! A [`world`] is an engine with lively runs on a file, and the real server before it. Headless
//! Chromium, [found or installed](programs) and driven through [`driver`], looks at every
//! [page](pages) and does every action on it as a person would; what came of it is asked of the engine's
//! own client. What is shown is also photographed, into `screenshots` below the directory that cargo
//! builds in, and judged by axe-core.
//!
//! Always true: nothing waits for a time. A wait is for something on the [`page`], has a limit, and says
//! what was expected and what was there instead. No test may leave a word in the browser's console that
//! it did not expect: errors of scripts and refusals of the Content-Security-Policy are found so.

use std::{path::PathBuf, process::ExitCode, time::Instant};

mod access;
mod actions;
mod around;
mod axe;
mod driver;
mod keyboard;
mod live;
mod look;
mod page;
mod pages;
mod programs;
mod samples;
mod scale;
mod world;
mod xss;

use driver::{Driver, Shape};
use page::Page;
use world::World;

/// Why something is not as it should be.
type Problem = Box<dyn std::error::Error + Send + Sync>;

/// What every test has.
struct Bench {
    driver: Driver,
    world: World,
    /// On a desktop, at the server that asks for no token.
    page: Page,
    axe: String,
    /// Where pictures go.
    pictures: PathBuf,
}

/// All tests, by name. Those that only look come before those that change what there is to see.
macro_rules! tests {
    ($($name:ident: $test:path,)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        async fn run(name: &str, bench: &Bench) -> Result<(), Problem> {
            match name {
                $(stringify!($name) => $test(bench).await,)*
                _ => Err(format!("there is no test `{name}`").into()),
            }
        }
    };
}

tests! {
    every_page_is_shown_without_complaint: look::every_page_is_shown_without_complaint,
    list_follows_what_happens: live::list_follows_what_happens,
    page_that_one_comes_back_to_is_live: live::page_that_one_comes_back_to_is_live,
    run_follows_what_happens: live::run_follows_what_happens,
    stream_follows_what_happens: live::stream_follows_what_happens,
    search_and_filters_find_runs: live::search_and_filters_find_runs,
    what_users_write_stays_text: xss::what_users_write_stays_text,
    list_and_dialogs_work_by_keyboard: keyboard::list_and_dialogs_work_by_keyboard,
    history_works_by_keyboard: keyboard::history_works_by_keyboard,
    run_is_started: actions::run_is_started,
    large_numbers_stay_as_they_are: actions::large_numbers_stay_as_they_are,
    run_is_paused_and_resumed: actions::run_is_paused_and_resumed,
    run_is_cancelled: actions::run_is_cancelled,
    run_is_cancelled_and_rolled_back: actions::run_is_cancelled_and_rolled_back,
    run_is_retried: actions::run_is_retried,
    run_is_forked_from_a_step: actions::run_is_forked_from_a_step,
    message_is_sent: actions::message_is_sent,
    deferred_and_token_are_resolved: actions::deferred_and_token_are_resolved,
    tag_is_set_and_run_deleted: actions::tag_is_set_and_run_deleted,
    refused_action_says_why: actions::refused_action_says_why,
    event_is_published: around::event_is_published,
    schedule_is_paused_resumed_and_triggered: around::schedule_is_paused_resumed_and_triggered,
    queue_items_are_replayed_and_dropped: around::queue_items_are_replayed_and_dropped,
    dead_letters_are_replayed_and_dropped: around::dead_letters_are_replayed_and_dropped,
    many_runs_are_changed_at_once: around::many_runs_are_changed_at_once,
    changes_are_in_the_audit_log: around::changes_are_in_the_audit_log,
    token_logs_in_and_out: access::token_logs_in_and_out,
    reader_can_change_nothing: access::reader_can_change_nothing,
    list_of_a_hundred_thousand_runs_stays_small: scale::list_of_a_hundred_thousand_runs_stays_small,
    history_of_ten_thousand_entries_stays_small: scale::history_of_ten_thousand_entries_stays_small,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (directory, names) = match directory().and_then(|it| Ok((it, chosen(&arguments)?))) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}\nusage: cargo xtask browser [NAME..]");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let failed = runtime
        .map_err(Problem::from)
        .and_then(|runtime| runtime.block_on(all(&directory, &names)));
    match failed {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("the dashboard could not be tested: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// The directory that cargo builds in, where what is fetched and the pictures go: it has put this
/// program there, and a mark.
fn directory() -> Result<PathBuf, Problem> {
    let program = std::env::current_exe()?;
    let mut above = program.ancestors().skip(1);
    let built = above.find(|directory| directory.join("CACHEDIR.TAG").exists());
    let built = built.ok_or_else(|| format!("{} is not where cargo builds", program.display()))?;
    Ok(built.to_owned())
}

/// The tests whose names contain one of the words.
fn chosen(words: &[String]) -> Result<Vec<&'static str>, Problem> {
    if let Some(option) = words.iter().find(|word| word.starts_with('-')) {
        return Err(format!("`{option}` is not an option").into());
    }
    let wanted = |name: &&str| words.is_empty() || words.iter().any(|word| name.contains(word));
    let names: Vec<&'static str> = NAMES.iter().copied().filter(wanted).collect();
    if names.is_empty() {
        return Err(format!("no test has a name with {words:?} in it").into());
    }
    Ok(names)
}

/// Makes the tests: how many failed.
async fn all(directory: &std::path::Path, names: &[&str]) -> Result<usize, Problem> {
    let browser = programs::browser()?;
    let axe = programs::axe_core(directory).await?;
    let driver = Driver::start(browser).await?;
    let world = World::new(directory).await?;
    let bench = Bench {
        page: driver.page(Shape::Desktop, &world.open).await?,
        driver,
        world,
        axe,
        pictures: directory.join("screenshots"),
    };
    println!("\nrunning {} tests", names.len());
    let began = Instant::now();
    let mut failed = Vec::new();
    for name in names {
        let began = Instant::now();
        let ended = run_one(name, &bench).await;
        let time = began.elapsed().as_secs_f64();
        match ended {
            Ok(()) => println!("test {name} ... ok ({time:.1} s)"),
            Err(problem) => {
                println!("test {name} ... FAILED ({time:.1} s)\n{problem}\n");
                failed.push(*name);
            }
        }
    }
    let Bench { driver, world, page, .. } = bench;
    page.close().await;
    driver.end().await;
    world.end().await;
    for name in &failed {
        println!("failed: {name}");
    }
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "test result: {word}. {} passed; {} failed; finished in {:.1}s",
        names.len() - failed.len(),
        failed.len(),
        began.elapsed().as_secs_f64()
    );
    Ok(failed.len())
}

/// Makes a test; if it fails, there is a picture of how the page was then.
async fn run_one(name: &str, bench: &Bench) -> Result<(), Problem> {
    let ended = match run(name, bench).await {
        Ok(()) => bench.page.quiet_but_for(&[]).await,
        failed => failed,
    };
    if ended.is_err() {
        let file = bench.pictures.join(format!("failed-{name}.png"));
        std::fs::create_dir_all(&bench.pictures)?;
        std::fs::write(file, bench.page.picture().await?)?;
        // The next test has nothing to do with what this one left.
        bench.page.console().await?;
    }
    ended
}
