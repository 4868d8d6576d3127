//! BARE: the notation in which entries and failures are written (Binary Application Record
//! Encoding, draft-devault-bare).
//!
//! Only what those records need:
//!
//! ```text
//! uint      7 bits to a byte, lowest first, the high bit set on all but the last; at most 64 bits
//! int       as uint, zigzag: 0, -1, 1, -2, ..
//! u8, u16   fixed, little-endian
//! bool      00 or 01
//! fixed     the bytes alone
//! data      length as uint, then the bytes; string: the same, in UTF-8
//! optional  00, or 01 and the value
//! list      count as uint, then the values
//! enum      its number as uint
//! ```
//!
//! Always true: the reader refuses numbers that are longer than they need be, so that there is one
//! encoding of every value, and it allocates only for bytes that are there.

use super::DecodeError;

/// Appends values to bytes.
pub(crate) struct Writer<'a>(&'a mut Vec<u8>);

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Writer<'a> {
        Writer(out)
    }

    pub(crate) fn u8(&mut self, n: u8) {
        self.0.push(n);
    }

    pub(crate) fn u16(&mut self, n: u16) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }

    pub(crate) fn uint(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    pub(crate) fn int(&mut self, n: i64) {
        self.uint((n << 1 ^ n >> 63) as u64);
    }

    pub(crate) fn bool(&mut self, yes: bool) {
        self.0.push(u8::from(yes));
    }

    /// Bytes whose number is known to the reader.
    pub(crate) fn fixed(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn data(&mut self, bytes: &[u8]) {
        self.uint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn string(&mut self, text: &str) {
        self.data(text.as_bytes());
    }

    pub(crate) fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    pub(crate) fn list<T>(&mut self, items: &[T], write: impl Fn(&mut Self, &T)) {
        self.uint(items.len() as u64);
        items.iter().for_each(|item| write(self, item));
    }
}

/// Reads values from bytes, in the order in which they were written.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    /// How many bytes were read.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// That the value which begins at `at` cannot be.
    pub(crate) fn invalid(&self, at: usize, problem: impl Into<String>) -> DecodeError {
        DecodeError::Invalid { at, problem: problem.into() }
    }

    /// A code that is stored as a number. `what` says what it stands for.
    pub(crate) fn code<T>(
        &mut self,
        from_code: impl FnOnce(u8) -> Option<T>,
        what: &str,
    ) -> Result<T, DecodeError> {
        let at = self.at();
        let code = self.uint()?;
        let found = u8::try_from(code).ok().and_then(from_code);
        found.ok_or_else(|| self.invalid(at, format!("{code} is no {what}")))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.fixed().map(u16::from_le_bytes)
    }

    pub(crate) fn uint(&mut self) -> Result<u64, DecodeError> {
        let start = self.at;
        let mut n = 0u64;
        for shift in (0..).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7F);
            if shift >= 64 || bits << shift >> shift != bits {
                return Err(self.invalid(start, "a number has more than 64 bits"));
            }
            n |= bits << shift;
            if byte & 0x80 == 0 {
                if byte == 0 && shift > 0 {
                    return Err(self.invalid(start, "a number is longer than it need be"));
                }
                break;
            }
        }
        Ok(n)
    }

    /// A number that was written as one of 32 bits.
    pub(crate) fn uint32(&mut self) -> Result<u32, DecodeError> {
        let start = self.at;
        let n = self.uint()?;
        u32::try_from(n).map_err(|_| self.invalid(start, "a number has more than 32 bits"))
    }

    pub(crate) fn int(&mut self) -> Result<i64, DecodeError> {
        let n = self.uint()?;
        Ok((n >> 1) as i64 ^ -((n & 1) as i64))
    }

    pub(crate) fn bool(&mut self) -> Result<bool, DecodeError> {
        let start = self.at;
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.invalid(start, format!("{other} is neither yes nor no"))),
        }
    }

    /// `N` bytes.
    pub(crate) fn fixed<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N as u64)?);
        Ok(bytes)
    }

    pub(crate) fn data(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.uint()?;
        self.take(len)
    }

    pub(crate) fn string(&mut self) -> Result<&'a str, DecodeError> {
        let start = self.at;
        let bytes = self.data()?;
        std::str::from_utf8(bytes).map_err(|_| self.invalid(start, "a text is not UTF-8"))
    }

    pub(crate) fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }

    /// A list of values, each of which takes at least one byte.
    pub(crate) fn list<T>(
        &mut self,
        read: impl Fn(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let start = self.at;
        let count = self.uint()?;
        let left = (self.bytes.len() - self.at) as u64;
        if count > left {
            let needed = count - left;
            return Err(DecodeError::Truncated { at: start, needed });
        }
        // Grown item by item: a value in memory may be far larger than its one byte here.
        (0..count).map(|_| read(self)).collect()
    }

    /// That all bytes were read.
    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        let extra = self.bytes.len() - self.at;
        if extra > 0 {
            return Err(DecodeError::Trailing { at: self.at, extra });
        }
        Ok(())
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], DecodeError> {
        let left = &self.bytes[self.at..];
        let taken = usize::try_from(len).ok().and_then(|len| left.get(..len));
        let taken = taken.ok_or(DecodeError::Truncated {
            at: self.at,
            needed: len.saturating_sub(left.len() as u64),
        })?;
        self.at += taken.len();
        Ok(taken)
    }
}

/// The record that begins with this prefix and ends with this data.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn with_data(prefix: &[u8], data: &[u8]) -> Vec<u8> {
    let mut out = prefix.to_vec();
    Writer::new(&mut out).data(data);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut Writer::new(&mut out));
        out
    }

    #[test]
    fn written_values_never_change() {
        assert_eq!(written(|w| w.uint(0)), [0]);
        assert_eq!(written(|w| w.uint(127)), [0x7F]);
        assert_eq!(written(|w| w.uint(300)), [0xAC, 0x02]);
        assert_eq!(written(|w| w.uint(u64::MAX)).len(), 10);
        assert_eq!(written(|w| w.int(-1)), [1]);
        assert_eq!(written(|w| w.int(64)), [0x80, 0x01]);
        assert_eq!(written(|w| w.u16(1)), [1, 0]);
        assert_eq!(written(|w| w.string("né")), [3, b'n', 0xC3, 0xA9]);
        assert_eq!(written(|w| w.optional(Some(7), Writer::u8)), [1, 7]);
        assert_eq!(written(|w| w.optional(None, Writer::u8)), [0]);
        assert_eq!(written(|w| w.list(&[5, 6], |w, n| w.u8(*n))), [2, 5, 6]);
    }

    #[test]
    fn damaged_values_are_refused() {
        let uint = |bytes: &[u8]| Reader::new(bytes).uint();
        let invalid =
            |problem: &str| Err(DecodeError::Invalid { at: 0, problem: problem.to_owned() });
        assert_eq!(uint(&[0x80]), Err(DecodeError::Truncated { at: 1, needed: 1 }));
        assert_eq!(uint(&[0x80, 0]), invalid("a number is longer than it need be"));
        assert_eq!(uint(&[0xFF; 12]), invalid("a number has more than 64 bits"));
        let huge = written(|w| w.uint(u64::MAX));
        assert!(matches!(Reader::new(&huge).data(), Err(DecodeError::Truncated { at: 10, .. })));
        assert!(Reader::new(&huge).list(Reader::u8).is_err());
        assert!(Reader::new(&[2]).bool().is_err());
    }

    proptest! {
        #[test]
        fn numbers_round_trip(n: u64, m: i64) {
            let bytes = written(|w| { w.uint(n); w.int(m); });
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(reader.uint(), Ok(n));
            prop_assert_eq!(reader.int(), Ok(m));
            prop_assert_eq!(reader.finish(), Ok(()));
        }

        #[test]
        fn a_number_has_one_encoding(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
            let mut reader = Reader::new(&bytes);
            if let Ok(n) = reader.uint() {
                prop_assert_eq!(written(|w| w.uint(n)), &bytes[..reader.at()]);
            }
        }
    }
}
