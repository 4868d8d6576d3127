//! Writes the list of the dashboard's files, so that a new one is served without being named twice.

use std::{env, fs, io, path::Path};

fn main() -> io::Result<()> {
    let root = env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?;
    let out = env::var("OUT_DIR").map_err(io::Error::other)?;
    let directory = Path::new(&root).join("assets");
    println!("cargo::rerun-if-changed={}", directory.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(&directory)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    let mut list = String::from("/// The files, by name.\nstatic ASSETS: &[(&str, &[u8])] = &[\n");
    for name in names {
        let path = directory.join(&name);
        list += &format!("    ({name:?}, include_bytes!({path:?})),\n");
    }
    list += "];\n";
    fs::write(Path::new(&out).join("assets.rs"), list)
}
