//! Numbers in JSON text that would be changed when it is read.

/// A number that cannot be kept as it is written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the integer `{number}` has more than 64 bits; write it as a text, `\"{number}\"`, or as a float, \
     `{number}.0`, if it may be rounded"
)]
pub struct NumberError {
    number: String,
}

/// How much of such a number is repeated.
const SHOWN: usize = 40;

/// Refuses JSON text with an integer that has more than 64 bits: `serde_json` would round it to a float
/// without a word. What is written as a float (`1e30`, `1.5`) is one, and is taken. Whether it is JSON at
/// all is not looked at.
///
/// Call it before text from outside is parsed for [`Client::start_json`](crate::Client::start_json) and
/// the like. The command line and the HTTP API do.
///
/// # Errors
///
/// [`NumberError`], with the first such integer.
///
/// ```
/// assert!(everstep::check_json_numbers(br#"{"id": 18446744073709551615, "x": 1e30}"#).is_ok());
/// assert!(everstep::check_json_numbers(br#"{"id": 18446744073709551616}"#).is_err());
/// ```
pub fn check_json_numbers(text: &[u8]) -> Result<(), NumberError> {
    let mut rest = text;
    while let Some(first) = rest.first() {
        let len = match first {
            b'"' => text_len(rest),
            b'-' | b'0'..=b'9' => {
                let is_part = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
                let end = rest.iter().position(|byte| !is_part(byte));
                let number = &rest[..end.unwrap_or(rest.len())];
                check(number)?;
                number.len()
            }
            _ => 1,
        };
        rest = &rest[len..];
    }
    Ok(())
}

/// How long the quoted text is that this begins with.
fn text_len(rest: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = rest.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    rest.len()
}

fn check(number: &[u8]) -> Result<(), NumberError> {
    let is_float = number.iter().any(|byte| b".eE".contains(byte));
    let number = String::from_utf8_lossy(number);
    if is_float || number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok() {
        return Ok(());
    }
    // What is no number at all is for the parser to say.
    let digits = number.strip_prefix('-').unwrap_or(&number);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(());
    }
    let number = match number.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}..", &number[..end]),
        None => number.into_owned(),
    };
    Err(NumberError { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An id of 23 digits was stored as `1.2345678901234568e+22`.
    #[test]
    fn an_integer_beyond_64_bits_is_refused_and_not_rounded() {
        for wrong in [
            "12345678901234567890123",
            "18446744073709551616",
            "-9223372036854775809",
            r#"{"a": [1, {"b": 99999999999999999999}]}"#,
            r#"["\"", 99999999999999999999]"#,
            r#"["\\", 99999999999999999999]"#,
        ] {
            let error = check_json_numbers(wrong.as_bytes()).expect_err(wrong);
            assert!(error.to_string().contains("64 bits"), "{error}");
        }
        let long = "9".repeat(1_000);
        let error = check_json_numbers(long.as_bytes()).expect_err("long");
        assert!(error.to_string().len() < 400, "{error}");
    }

    #[test]
    fn floats_and_texts_and_integers_of_64_bits_are_taken() {
        for right in [
            "1e30",
            "1.5",
            "123456789012345678901234567890.0",
            "-1E+400",
            "18446744073709551615",
            "-9223372036854775808",
            "-0",
            r#""12345678901234567890123""#,
            r#"{"12345678901234567890123": "\"12345678901234567890123"}"#,
            "\"",
            "\"\\",
            "-",
            "",
        ] {
            assert_eq!(check_json_numbers(right.as_bytes()), Ok(()), "{right}");
        }
    }
}
