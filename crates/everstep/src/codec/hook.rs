//! The hook for compression and encryption of payloads.
//!
//! Whatever a user's value has become (CBOR, see [`super::payload`]) is *sealed* by the codec of its
//! writer before it is stored, and *opened* by the codec of its reader. What is sealed lies in an
//! envelope that no CBOR begins like, so that payloads from before there was a codec stay readable,
//! and a reader without the codec can say which one it misses:
//!
//! ```text
//! FF         no item of CBOR begins with this byte
//! 01         the version of the envelope
//! flags      u8; 1: the run that it belongs to was given to the codec
//! codec      string, the codec's id
//! sealed     all that follows is the codec's
//! ```

use std::{borrow::Cow, fmt, sync::Arc};

use super::{
    DecodeError,
    bare::{Reader, Writer},
    payload,
};
use crate::run_id::RunId;

/// Compresses or encrypts payloads: what is stored of inputs, outputs, results, messages, replies,
/// states and the details of errors.
///
/// Give it to every process that writes or reads them: [`EngineBuilder::codec`] for engines,
/// [`Client::codec`] for clients without one. Not covered are names (of workflows, steps, messages,
/// keys and tags) and the texts of errors: people and the store read those.
///
/// Payloads from before there was a codec stay readable. One that was written with a codec which is
/// not there, or that the codec cannot decode (a key that is unknown), pauses its run, which goes on
/// when an engine starts that can; clients get an error that names the codec.
///
/// Both methods must be quick, since engine threads call them, and may be called at the same time
/// by many threads. `decode` must read everything that `encode` has ever written: put the id of the
/// key, and a version, into the bytes.
///
/// ```
/// use everstep::{Codec, CodecError, PayloadContext, prelude::*, testing};
///
/// /// Hides payloads from nobody who looks twice.
/// struct Rot(u8);
///
/// impl Codec for Rot {
///     fn id(&self) -> &str {
///         "rot"
///     }
///
///     fn encode(&self, payload: Vec<u8>, _: &PayloadContext) -> Result<Vec<u8>, CodecError> {
///         Ok(payload.iter().map(|byte| byte.wrapping_add(self.0)).collect())
///     }
///
///     fn decode(&self, bytes: &[u8], _: &PayloadContext) -> Result<Vec<u8>, CodecError> {
///         Ok(bytes.iter().map(|byte| byte.wrapping_sub(self.0)).collect())
///     }
/// }
///
/// #[workflow]
/// async fn greet(ctx: Ctx, name: String) -> Result<String> {
///     ctx.step("greet", async || Ok(format!("Hello, {name}!"))).await
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = testing::engine().codec(Rot(13)).register(greet).start().await?;
/// let run = engine.client().start(greet, "Ada".to_owned()).await?;
/// assert_eq!(run.result().await?, "Hello, Ada!");
/// # engine.shutdown().await;
/// # Ok(()) }
/// ```
///
/// The example `encrypted` has a real one: authenticated encryption over compression, with keys
/// that are rotated.
///
/// [`EngineBuilder::codec`]: crate::EngineBuilder::codec
/// [`Client::codec`]: crate::Client::codec
pub trait Codec: Send + Sync + 'static {
    /// Names the codec in what is stored. It stays the same when keys change.
    fn id(&self) -> &str;

    /// What is stored for a payload. It need not be the same each time.
    ///
    /// # Errors
    ///
    /// In the body of a step this is a failed attempt. A client gets it; a workflow is paused.
    fn encode(&self, payload: Vec<u8>, about: &PayloadContext) -> Result<Vec<u8>, CodecError>;

    /// The payload that [`encode`](Codec::encode) was given. One that has more than
    /// [`bytes_max`](PayloadContext::bytes_max) bytes is refused: do not make it longer than that.
    ///
    /// # Errors
    ///
    /// If it cannot be told: a key is not there, or the bytes are damaged.
    fn decode(&self, bytes: &[u8], about: &PayloadContext) -> Result<Vec<u8>, CodecError>;
}

/// Why a codec could not.
pub type CodecError = Box<dyn std::error::Error + Send + Sync>;

/// What a codec is told about a payload: the same when it is encoded and when it is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PayloadContext {
    /// The run that the payload belongs to, if it belongs to one alone: a result of a step, the
    /// state of a loop, a value that was set for clients. Bind it (as associated data), and nobody
    /// can pass off what one run has stored as another's. Absent for what goes from one to another:
    /// inputs, outputs, messages, replies, details of errors.
    pub run: Option<RunId>,
    /// How many bytes a payload may have. A [`decode`](Codec::decode) that decompresses must stop there,
    /// since a few bytes from a hostile file can stand for gigabytes; a longer payload is refused.
    pub bytes_max: usize,
}

/// How many bytes a payload may have that goes through a codec.
const PAYLOAD_BYTES_MAX: usize = 64 << 20;

/// The codecs of a process: the last one writes, all of them read.
#[derive(Clone, Default)]
pub(crate) struct Codecs(Option<Arc<[Arc<dyn Codec>]>>);

impl fmt::Debug for Codecs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all().map(|c| c.id())).finish()
    }
}

/// A payload could not be sealed.
#[derive(Debug, thiserror::Error)]
#[error("codec `{id}` cannot encode it: {problem}")]
pub(crate) struct SealError {
    id: String,
    problem: String,
}

const MARK: u8 = 0xFF;
const VERSION: u8 = 1;
const BOUND: u8 = 1;

impl Codecs {
    fn all(&self) -> impl DoubleEndedIterator<Item = &Arc<dyn Codec>> {
        self.0.iter().flat_map(|codecs| codecs.iter())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Adds one, which writes from now on.
    pub(crate) fn push(&mut self, codec: Arc<dyn Codec>) {
        self.0 = Some(self.all().cloned().chain([codec]).collect());
    }

    /// What is stored for a payload. `run` if it belongs to that run alone.
    pub(crate) fn seal(&self, payload: Vec<u8>, run: Option<RunId>) -> Result<Vec<u8>, SealError> {
        let Some(codec) = self.all().next_back() else {
            return Ok(payload);
        };
        let id = codec.id();
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(SealError { id: id.to_owned(), problem: too_long(payload.len()) });
        }
        let bytes_max = PAYLOAD_BYTES_MAX;
        let sealed = codec
            .encode(payload, &PayloadContext { run, bytes_max })
            .map_err(|error| SealError { id: id.to_owned(), problem: full(&*error) })?;
        let mut out = Vec::with_capacity(4 + id.len() + sealed.len());
        let mut writer = Writer::new(&mut out);
        writer.u8(MARK);
        writer.u8(VERSION);
        writer.u8(if run.is_some() { BOUND } else { 0 });
        writer.string(id);
        writer.fixed(&sealed);
        Ok(out)
    }

    /// The payload of what is stored. `run` is the run that it was found with.
    pub(crate) fn open<'a>(
        &self,
        bytes: &'a [u8],
        run: Option<RunId>,
    ) -> Result<Cow<'a, [u8]>, DecodeError> {
        if !is_sealed(bytes) {
            return Ok(Cow::Borrowed(bytes));
        }
        let Envelope { bound, id, sealed } = Envelope::read(bytes)?;
        let Some(codec) = self.all().rev().find(|codec| codec.id() == id) else {
            return Err(DecodeError::NoCodec { id: id.to_owned() });
        };
        let about = PayloadContext { run: run.filter(|_| bound), bytes_max: PAYLOAD_BYTES_MAX };
        let opened = codec.decode(sealed, &about).map_err(|error| full(&*error));
        let opened = opened.and_then(|opened| match opened.len() {
            len if len > PAYLOAD_BYTES_MAX => Err(too_long(len)),
            _ => Ok(Cow::Owned(opened)),
        });
        opened.map_err(|problem| DecodeError::Codec { id: id.to_owned(), problem })
    }

    /// The value of what is stored.
    pub(crate) fn read<T: serde::de::DeserializeOwned>(
        &self,
        bytes: &[u8],
        run: Option<RunId>,
    ) -> Result<T, DecodeError> {
        payload::from_slice(&self.open(bytes, run)?)
    }
}

/// Whether this is in an envelope.
pub(crate) fn is_sealed(bytes: &[u8]) -> bool {
    bytes.first() == Some(&MARK)
}

/// Why sealed bytes cannot be read by somebody who knows no codecs.
pub(super) fn unopened(bytes: &[u8]) -> DecodeError {
    match Envelope::read(bytes) {
        Ok(Envelope { id, .. }) => DecodeError::NoCodec { id: id.to_owned() },
        Err(error) => error,
    }
}

/// Whether these sealed bytes are in an envelope that is whole.
///
/// # Errors
///
/// If they are not.
pub(super) fn check_envelope(bytes: &[u8]) -> Result<(), DecodeError> {
    Envelope::read(bytes).map(drop)
}

struct Envelope<'a> {
    bound: bool,
    id: &'a str,
    sealed: &'a [u8],
}

impl<'a> Envelope<'a> {
    fn read(bytes: &'a [u8]) -> Result<Envelope<'a>, DecodeError> {
        let mut reader = Reader::new(bytes);
        reader.u8()?;
        let version = reader.u8()?;
        if version != VERSION {
            return Err(DecodeError::UnknownVersion {
                what: "an envelope",
                found: u16::from(version),
                known: u16::from(VERSION),
            });
        }
        let bound = reader.u8()? & BOUND != 0;
        let id = reader.string()?;
        let sealed = &bytes[reader.at()..];
        Ok(Envelope { bound, id, sealed })
    }
}

/// An error with all its causes, on one line.
fn too_long(actual: usize) -> String {
    format!("the payload has {actual} bytes, and the limit is {PAYLOAD_BYTES_MAX}")
}

fn full(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Failure, FailureKind};

    struct Plus(&'static str, u8);

    impl Codec for Plus {
        fn id(&self) -> &str {
            self.0
        }

        fn encode(&self, payload: Vec<u8>, about: &PayloadContext) -> Result<Vec<u8>, CodecError> {
            if payload == [0] {
                return Err("no zeros".into());
            }
            let bound = u8::from(about.run.is_some());
            Ok(payload.iter().map(|byte| byte + self.1 + bound).collect())
        }

        fn decode(&self, bytes: &[u8], about: &PayloadContext) -> Result<Vec<u8>, CodecError> {
            let bound = u8::from(about.run.is_some());
            Ok(bytes.iter().map(|byte| byte - self.1 - bound).collect())
        }
    }

    fn codecs(list: &[(&'static str, u8)]) -> Codecs {
        let mut codecs = Codecs::default();
        for (id, plus) in list {
            codecs.push(Arc::new(Plus(id, *plus)));
        }
        codecs
    }

    fn run() -> Option<RunId> {
        "019a8a3c-0000-7000-8000-000000000000".parse().ok()
    }

    #[test]
    fn an_envelope_has_a_fixed_format() {
        let plus = codecs(&[("plus", 1)]);
        let sealed = plus.seal(vec![7], None).expect("sealed");
        assert_eq!(sealed, *b"\xFF\x01\x00\x04plus\x08");
        assert_eq!(*plus.open(&sealed, None).expect("opened"), [7]);
        assert_eq!(*plus.open(&sealed, run()).expect("not bound"), [7]);
        let bound = plus.seal(vec![7], run()).expect("sealed");
        assert_eq!(bound, *b"\xFF\x01\x01\x04plus\x09");
        assert_eq!(*plus.open(&bound, run()).expect("opened"), [7]);
    }

    #[test]
    fn what_was_not_sealed_is_read_as_it_is() {
        let plus = codecs(&[("plus", 1)]);
        assert_eq!(*plus.open(&[7], None).expect("plain"), [7]);
        assert_eq!(Codecs::default().seal(vec![7], None).expect("plain"), [7]);
        assert_eq!(plus.read::<u32>(&[7], None), Ok(7));
    }

    #[test]
    fn the_last_codec_writes_and_all_read() {
        let old = codecs(&[("old", 1)]);
        let both = codecs(&[("old", 1), ("new", 2)]);
        let sealed = old.seal(vec![7], None).expect("sealed");
        assert_eq!(both.read::<u32>(&sealed, None), Ok(7));
        let sealed = both.seal(vec![7], None).expect("sealed");
        assert!(sealed.starts_with(b"\xFF\x01\x00\x03new"));
        let error = old.open(&sealed, None).expect_err("it has no such codec");
        let text = "it was written with codec `new`, which this process does not have";
        assert_eq!(error.to_string(), text);
        assert_eq!(payload::from_slice::<u32>(&sealed), Err(error));
    }

    #[test]
    fn damaged_envelopes_are_errors() {
        let plus = codecs(&[("plus", 1)]);
        let sealed = plus.seal(vec![7], None).expect("sealed");
        for end in 1..8 {
            assert!(plus.open(&sealed[..end], None).is_err(), "{end}");
        }
        let error = plus.open(&[0xFF, 9], None).expect_err("a later version");
        assert!(error.to_string().contains("version 9"), "{error}");
    }

    #[test]
    fn details_that_cannot_be_sealed_are_left_out() {
        let plus = codecs(&[("plus", 1)]);
        let mut failure = Failure::new(FailureKind::Error, "no".to_owned());
        failure.details = Some(("u8".to_owned(), vec![0]));
        failure.seal_details(&plus);
        assert_eq!(failure.details, None);
        let said = "details left out: codec `plus` cannot encode it: no zeros";
        assert_eq!(failure.causes, [said]);
        failure.details = Some(("u8".to_owned(), vec![5]));
        failure.seal_details(&plus);
        assert!(failure.open_details(&Codecs::default()).is_err());
        failure.open_details(&plus).expect("opened");
        assert_eq!(failure.details, Some(("u8".to_owned(), vec![5])));
    }
}
