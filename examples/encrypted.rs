//! Payloads that are compressed and encrypted, with keys that are rotated.
//!
//! ```text
//! cargo run --release --example encrypted
//! ```
//!
//! The codec compresses with LZ4 and encrypts with XChaCha20-Poly1305. Each payload names its key,
//! so that a new key can be brought in under running work: the newest one writes, all of them read.
//! Where a payload belongs to one run alone, the run's id is authenticated with it, so that nobody
//! who can write the file can pass off one run's results as another's.
//!
//! Names of workflows, steps, messages, keys and tags stay readable, and so do the texts of errors:
//! do not put secrets there. In a real program the keys come from a key store, not from the code.

use std::{collections::BTreeMap, time::Duration};

use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Generate, Payload},
};
use everstep::{Codec, CodecError, PayloadContext, RunStatus, prelude::*};

/// Compresses and encrypts. What it writes:
///
/// ```text
/// key    u32, big-endian: which key it is encrypted with
/// nonce  24 bytes, at random: there are so many that none comes twice
/// rest   the compressed payload, encrypted, and a tag
/// ```
struct Encrypted {
    keys: BTreeMap<u32, XChaCha20Poly1305>,
}

const NONCE: usize = 24;
/// No payload of everstep is larger, unless `payload_bytes_max` is raised. Without a limit, a few
/// bytes that somebody has written could ask for all memory there is.
const PAYLOAD_BYTES_MAX: usize = 2 << 20;

impl Encrypted {
    /// With these keys, by id. The one with the highest id is written with.
    fn with(keys: &[(u32, [u8; 32])]) -> Encrypted {
        let keys = keys.iter();
        let keys = keys.map(|(id, key)| (*id, XChaCha20Poly1305::new(key.into())));
        Encrypted { keys: keys.collect() }
    }
}

/// What is authenticated besides the payload: its key's id, and its run if it has one.
fn associated(key: u32, about: &PayloadContext) -> Vec<u8> {
    let mut data = key.to_be_bytes().to_vec();
    data.extend(about.run.iter().flat_map(|run| run.as_uuid().into_bytes()));
    data
}

impl Codec for Encrypted {
    fn id(&self) -> &str {
        "lz4+xchacha20poly1305"
    }

    fn encode(&self, payload: Vec<u8>, about: &PayloadContext) -> Result<Vec<u8>, CodecError> {
        let (id, cipher) = self.keys.last_key_value().ok_or("there is no key")?;
        let compressed = lz4_flex::compress_prepend_size(&payload);
        let nonce = XNonce::generate();
        let aad = associated(*id, about);
        let message = Payload { msg: &compressed, aad: &aad };
        let sealed = cipher.encrypt(&nonce, message).map_err(|_| "it cannot be encrypted")?;
        Ok([&id.to_be_bytes()[..], &nonce[..], &sealed[..]].concat())
    }

    fn decode(&self, bytes: &[u8], about: &PayloadContext) -> Result<Vec<u8>, CodecError> {
        let (id, rest) = bytes.split_first_chunk().ok_or("it is too short")?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE>().ok_or("it is too short")?;
        let id = u32::from_be_bytes(*id);
        let cipher = self.keys.get(&id);
        let cipher = cipher.ok_or_else(|| format!("key {id} is not here"))?;
        let aad = associated(id, about);
        let message = Payload { msg: sealed, aad: &aad };
        // It tells whether the bytes are what was written, for this run and with this key.
        let compressed = cipher
            .decrypt(nonce.into(), message)
            .map_err(|_| "it was changed, or belongs to another run")?;
        let (size, compressed) = lz4_flex::block::uncompressed_size(&compressed)?;
        if size > PAYLOAD_BYTES_MAX {
            return Err(format!("it has {size} bytes").into());
        }
        Ok(lz4_flex::decompress(compressed, size)?)
    }
}

#[workflow]
async fn enrol(ctx: Ctx, patient: String) -> Result<String> {
    ctx.set_state("patient", &patient)?;
    let record = ctx.step("open a record", async || Ok(format!("record of {patient}"))).await?;
    let finding: String = ctx.listen("finding").await?;
    Ok(format!("{record}: {finding}"))
}

const STORE: &str = "encrypted.db";

fn engine(codec: Encrypted) -> everstep::EngineBuilder {
    Engine::open(STORE).codec(codec).register(enrol)
}

async fn until(
    run: &RunHandle<String>,
    status: RunStatus,
) -> Result<String, everstep::ClientError> {
    loop {
        let info = run.info().await?;
        if info.status == status {
            return Ok(info.waiting.unwrap_or_default());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let first = (1, [0x11; 32]);
    let second = (2, [0x22; 32]);

    let engine_1 = engine(Encrypted::with(&[first])).start().await?;
    let run = engine_1.client().start(enrol, "Ada Lovelace".to_owned()).await?;
    until(&run, RunStatus::Sleeping).await?;
    println!("key 1: the run waits for a finding");
    engine_1.shutdown().await;

    // An engine that has only the new key cannot read what the old one wrote. The run is paused,
    // with all that it has.
    let without = engine(Encrypted::with(&[second])).start().await?;
    let run = without.client().run::<String>(run.id());
    run.send("finding", &"in good health").await?;
    println!("key 2: {}", until(&run, RunStatus::Paused).await?);
    without.shutdown().await;

    // With both, it goes on by itself, and what it writes is written with the new one.
    let both = engine(Encrypted::with(&[first, second])).start().await?;
    let run = both.client().run::<String>(run.id());
    println!("keys 1 and 2: {}", run.result().await?);
    both.shutdown().await;

    // A client in a process of its own needs the codec too.
    let client = Client::open(STORE).await?;
    match client.run::<String>(run.id()).result().await {
        Ok(_) => return Err("a client without the codec can read it".into()),
        Err(error) => println!("a client without the codec: {error}"),
    }
    let client = client.codec(Encrypted::with(&[first, second]));
    assert!(client.run::<String>(run.id()).poll().await?.is_some());
    drop(client);

    for secret in ["Ada", "Lovelace", "record of", "good health"] {
        for file in [STORE, "encrypted.db-wal"] {
            let bytes = std::fs::read(file).unwrap_or_default();
            let found = bytes.windows(secret.len()).any(|w| w == secret.as_bytes());
            assert!(!found, "`{secret}` is in `{file}`");
        }
    }
    println!("the file holds none of it");
    Ok(())
}
