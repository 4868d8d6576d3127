//! Where Chromium, its driver and axe-core are, and how they come onto the machine if they are not.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::process::Command;

use crate::Problem;

/// Chromium under the names that it has.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// Where Debian has them, if not on the path.
const PLACES: [&str; 3] = ["/usr/bin", "/usr/lib/chromium", "/usr/lib/chromium-browser"];
const PACKAGES: [&str; 2] = ["chromium", "chromium-driver"];

/// The version of axe-core: another one may ask for other things.
const AXE_CORE: &str = "4.14.0";

/// A browser, and what drives it.
pub(crate) struct Browser {
    pub(crate) chromium: PathBuf,
    pub(crate) driver: PathBuf,
}

/// Finds them, or installs Debian's.
pub(crate) async fn browser() -> Result<Browser, Problem> {
    if let Some(browser) = find_browser() {
        return Ok(browser);
    }
    println!("installing Debian's packages `{}`", PACKAGES.join(" "));
    let hint = format!(
        "chromium and chromedriver are needed: install them with `apt-get install {}` as root, or \
         put them on the PATH",
        PACKAGES.join(" ")
    );
    // Without lists there is nothing to install from; with old ones there may be.
    let update = apt_get(&["update"]).await;
    let install = ["install", "-y", "--no-install-recommends"];
    apt_get(&[&install[..], &PACKAGES[..]].concat())
        .await
        .map_err(|error| {
            let update = update.err().unwrap_or_default();
            format!("{hint} (it was tried: {update}{error})")
        })?;
    find_browser().ok_or_else(|| format!("{hint} (they were, and are still not found)").into())
}

fn find_browser() -> Option<Browser> {
    Some(Browser {
        chromium: BROWSERS.iter().find_map(|name| find(name))?,
        driver: find("chromedriver")?,
    })
}

fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).chain(PLACES.map(PathBuf::from));
    let files = directories.map(|directory| directory.join(program));
    files.into_iter().find(|file| file.is_file())
}

async fn apt_get(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("apt-get")
        .args(["-q", "-o", "DPkg::Lock::Timeout=300"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(|error| format!("apt-get could not be started: {error}; "))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// The text of axe-core, which npm brings into `directory` if it is not there.
pub(crate) async fn axe_core(directory: &Path) -> Result<String, Problem> {
    let own = directory.join(format!("axe-core-{AXE_CORE}"));
    let file = own.join("package/axe.min.js");
    if !file.exists() {
        println!("fetching axe-core {AXE_CORE} into {}", own.display());
        fs::create_dir_all(&own)?;
        let npm = find("npm").ok_or(
            "axe-core comes from npm, which is not on the PATH: install it (Debian's package `npm`)",
        )?;
        let package = format!("axe-core@{AXE_CORE}");
        let mut pack = Command::new(npm);
        pack.args(["pack", "--silent", &package]).current_dir(&own);
        succeed(pack, "npm could not fetch axe-core").await?;
        let mut unpack = Command::new("tar");
        unpack
            .args(["-xzf", &format!("axe-core-{AXE_CORE}.tgz")])
            .arg("package/axe.min.js")
            .current_dir(&own);
        succeed(unpack, "what npm has fetched could not be unpacked").await?;
    }
    fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()).into())
}

async fn succeed(mut command: Command, what: &str) -> Result<(), Problem> {
    let output = command.stdin(Stdio::null()).output().await;
    let output = output.map_err(|error| format!("{what}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{what}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}
