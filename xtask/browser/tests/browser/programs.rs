//! Where Chromium, its driver and axe-core are, and how they come onto the machine if they are not.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use everstep_pg::{find_or_install, on_path};
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
pub(crate) fn browser() -> Result<Browser, Problem> {
    Ok(find_or_install("chromedriver", &PACKAGES, find_browser)?)
}

fn find_browser() -> Option<Browser> {
    Some(Browser {
        chromium: BROWSERS.iter().find_map(|name| find(name))?,
        driver: find("chromedriver")?,
    })
}

fn find(program: &str) -> Option<PathBuf> {
    let known = PLACES.iter().map(|place| Path::new(place).join(program));
    on_path(program).or_else(|| known.into_iter().find(|file| file.is_file()))
}

/// The text of axe-core, which npm brings into `directory` if it is not there.
pub(crate) async fn axe_core(directory: &Path) -> Result<String, Problem> {
    let own = directory.join(format!("axe-core-{AXE_CORE}"));
    let file = own.join("package/axe.min.js");
    if !file.exists() {
        println!("fetching axe-core {AXE_CORE} into {}", own.display());
        fs::create_dir_all(&own)?;
        let npm = find_or_install("npm", &["npm"], || find("npm"))?;
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
