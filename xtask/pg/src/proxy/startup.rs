//! What a client says first: a length, a version, and names with values.

/// Asks for an encrypted connection come before, and are answered by one byte.
const TLS: i32 = 80_877_103;
const GSS: i32 = 80_877_104;
const PROTOCOL_MAJOR: i32 = 3;

/// No client has more to say about itself.
const BYTES_MAX: usize = 10_000;

/// Reads the first message of a client, in as many pieces as it comes.
#[derive(Debug, Default)]
pub(super) struct Startup {
    bytes: Vec<u8>,
    /// It is not what it should be, or is encrypted.
    unreadable: bool,
}

impl Startup {
    /// The application name, empty if it has none, when these bytes complete the message.
    pub(super) fn name_in(&mut self, bytes: &[u8]) -> Option<String> {
        if self.unreadable {
            return None;
        }
        self.bytes.extend(bytes);
        loop {
            let length = usize::try_from(self.integer(0)?).unwrap_or(usize::MAX);
            let code = self.integer(4)?;
            if [TLS, GSS].contains(&code) && length == 8 {
                self.bytes.drain(..8);
                continue;
            }
            if code >> 16 != PROTOCOL_MAJOR || !(8..BYTES_MAX).contains(&length) {
                self.unreadable = true;
                return None;
            }
            return self.bytes.get(8..length).map(application_name);
        }
    }

    fn integer(&self, at: usize) -> Option<i32> {
        let bytes = self.bytes.get(at..at + 4)?;
        Some(i32::from_be_bytes(bytes.try_into().ok()?))
    }
}

/// Looks through `name 0 value 0 .. 0`.
fn application_name(parameters: &[u8]) -> String {
    let mut parts = parameters.split(|byte| *byte == 0);
    while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
        if name == b"application_name" {
            return String::from_utf8_lossy(value).into_owned();
        }
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(parameters: &[u8]) -> Vec<u8> {
        let length = i32::try_from(parameters.len() + 8).unwrap();
        [&length.to_be_bytes(), &[0, 3, 0, 0], parameters].concat()
    }

    #[test]
    fn name_is_found_however_the_message_is_cut() {
        let tls = [8_i32.to_be_bytes(), TLS.to_be_bytes()].concat();
        let plain = message(b"user\0me\0application_name\0lane 1\0database\0d\0\0");
        for whole in [plain.clone(), [tls, plain].concat()] {
            for cut in 0..whole.len() {
                let mut startup = Startup::default();
                assert_eq!(startup.name_in(&whole[..cut]), None);
                let name = startup.name_in(&whole[cut..]);
                assert_eq!(name.as_deref(), Some("lane 1"), "cut at {cut}");
            }
        }
    }

    #[test]
    fn value_that_looks_like_the_name_is_none() {
        let found =
            Startup::default().name_in(&message(b"user\0application_name\0database\0d\0\0"));
        assert_eq!(found.as_deref(), Some(""));
    }

    #[test]
    fn encrypted_message_has_no_name() {
        let mut startup = Startup::default();
        assert_eq!(startup.name_in(&[22, 3, 1, 2, 0, 1, 0, 1, 252, 3]), None);
        assert_eq!(startup.name_in(&message(b"application_name\0x\0\0")), None);
    }
}
