//! The HTTP API, fuzzed: `cargo xtask fuzz-api`.
//!
//! A server on [seeded](seed) data is described by its own document, in which the names of what was
//! seeded are [offered](document) for parameters and fields. A validator reads it, and schemathesis
//! makes requests of it, as an admin and for a bounded time; nothing may be answered with a status of
//! 500 or more, or otherwise than the document says. The server [counts](count) what it has answered, and every operation must
//! have succeeded at least once.

use std::{path::PathBuf, process::ExitCode, time::Duration};

mod count;
mod document;
mod schemathesis;
mod seed;

use count::Counts;

/// Why it could not be done.
type Problem = Box<dyn std::error::Error + Send + Sync>;

/// What the admin of the seeded server has.
const TOKEN: &str = "the token of whoever fuzzes, known to all";

/// What was asked for.
struct Options {
    seconds: u64,
    seed: u64,
    /// Where what is installed and written goes.
    directory: PathBuf,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let options = match options(&arguments) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}\nusage: cargo xtask fuzz-api [--seconds N] [--seed N]");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let done = runtime.map_err(Problem::from).and_then(|runtime| runtime.block_on(fuzz(&options)));
    match done {
        Ok(wrong) if wrong.is_empty() => ExitCode::SUCCESS,
        Ok(wrong) => {
            for what in wrong {
                eprintln!("{what}");
            }
            ExitCode::FAILURE
        }
        Err(problem) => {
            eprintln!("the API could not be fuzzed: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn options(arguments: &[String]) -> Result<Options, Problem> {
    let mut options = Options { seconds: 120, seed: 1, directory: PathBuf::from("target") };
    let mut arguments = arguments.iter();
    while let Some(name) = arguments.next() {
        let value = arguments.next();
        let value = value.ok_or_else(|| format!("`{name}` needs a value"))?;
        match name.as_str() {
            "--seconds" => options.seconds = value.parse()?,
            "--seed" => options.seed = value.parse()?,
            "--directory" => options.directory = value.into(),
            _ => return Err(format!("`{name}` is not an option").into()),
        }
    }
    Ok(options)
}

/// Fuzzes it: what was wrong.
async fn fuzz(options: &Options) -> Result<Vec<String>, Problem> {
    let programs = schemathesis::installed(&options.directory).await?;
    let seeded = seed::seeded().await?;
    let server = everstep_server::Server::new(seeded.engine.client())
        .token(everstep_server::Token::new("fuzz", everstep_server::Role::Admin, TOKEN))
        // What waits for something to happen does so for a moment only.
        .request_limit(Duration::from_secs(3));
    let whole = server.document();
    let counts = Counts::default();
    let app = counts.counting(server.router());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let serving = tokio::spawn(axum::serve(listener, app).into_future());
    let path = options.directory.join("openapi.json");
    std::fs::write(&path, serde_json::to_vec_pretty(&whole)?)?;
    let is_valid = programs.is_valid(&path).await?;
    let path = options.directory.join("fuzz-api.json");
    let offered = document::offering(whole.clone(), &seeded);
    std::fs::write(&path, serde_json::to_vec_pretty(&offered)?)?;
    let run = schemathesis::Run {
        document: &path,
        url: &url,
        token: TOKEN,
        seconds: options.seconds,
        seed: options.seed,
    };
    let has_passed = run.made(&programs).await?;
    serving.abort();
    seeded.engine.shutdown().await;
    let mut wrong = counts.wrong(&whole);
    println!("{}", counts.line(&whole));
    if !is_valid {
        wrong.push("the document is not a valid one: see above".to_owned());
    }
    if !has_passed {
        wrong.push("schemathesis has found something: see above".to_owned());
    }
    Ok(wrong)
}
