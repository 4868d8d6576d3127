//! Schemathesis, and what says whether a document is one: installed where they are missing, and run.

use std::path::{Path, PathBuf};

use tokio::process::Command;

use crate::Problem;

/// What is installed.
const PACKAGES: [&str; 2] = ["schemathesis==4.*", "openapi-spec-validator==0.*"];

/// What is checked of each answer.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance";

/// The programs.
pub(crate) struct Programs {
    schemathesis: PathBuf,
    validator: PathBuf,
}

/// The programs, which are installed into an environment of their own if they are not there.
pub(crate) async fn installed(directory: &Path) -> Result<Programs, Problem> {
    let own = directory.join("schemathesis");
    let programs = Programs {
        schemathesis: own.join("bin/schemathesis"),
        validator: own.join("bin/openapi-spec-validator"),
    };
    if programs.schemathesis.exists() && programs.validator.exists() {
        return Ok(programs);
    }
    println!("installing schemathesis into {}", own.display());
    let python = everstep_pg::find_or_install("python3 -m venv", &["python3-venv"], python)?;
    let mut venv = Command::new(python);
    venv.args(["-m", "venv"]).arg(&own);
    succeed(venv, "an environment for schemathesis could not be made").await?;
    let mut pip = Command::new(own.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check"]);
    pip.args(PACKAGES);
    succeed(pip, "schemathesis is needed, and comes from the Python Package Index").await?;
    Ok(programs)
}

impl Programs {
    /// Whether a file is a valid document of OpenAPI 3.1. If not, it has been said why.
    pub(crate) async fn is_valid(&self, document: &Path) -> Result<bool, Problem> {
        let mut command = Command::new(&self.validator);
        command.args(["--schema", "3.1"]).arg(document);
        Ok(command.status().await?.success())
    }
}

/// Python, if it can make environments: Debian has the part that does in a package of its own.
fn python() -> Option<PathBuf> {
    let python = everstep_pg::on_path("python3")?;
    let mut asked = std::process::Command::new(&python);
    let answer = asked.args(["-c", "import venv, ensurepip"]).output();
    answer.is_ok_and(|it| it.status.success()).then_some(python)
}

async fn succeed(mut command: Command, hint: &str) -> Result<(), Problem> {
    let status = command.status().await;
    let status = status.map_err(|error| format!("{hint}: {error}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{hint}: it ended with {status}").into()),
    }
}

/// A run of it.
pub(crate) struct Run<'r> {
    pub(crate) document: &'r Path,
    pub(crate) url: &'r str,
    pub(crate) token: &'r str,
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
}

impl Run<'_> {
    /// Makes it: whether it has found nothing.
    pub(crate) async fn made(&self, programs: &Programs) -> Result<bool, Problem> {
        let mut command = Command::new(std::path::absolute(&programs.schemathesis)?);
        let document = std::path::absolute(self.document)?;
        // It leaves files where it is run.
        command.current_dir(document.parent().unwrap_or(Path::new(".")));
        command
            .arg("run")
            .arg(document)
            .args(["--url", self.url])
            .args(["--header", &format!("Authorization: Bearer {}", self.token)])
            .args(["--checks", CHECKS])
            .args(["--max-time", &self.seconds.to_string()])
            .args(["--seed", &self.seed.to_string()])
            .args(["--request-timeout", "10"])
            .args(["--phases", "examples,coverage,fuzzing"])
            .args(["--suppress-health-check", "all"])
            .arg("--continue-on-failure")
            .arg("--generation-database=none");
        Ok(command.status().await?.success())
    }
}
