//! Failures that cross the border as a status and a message.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    Invalid = 1,
    DataLoss = 2,
    Unsupported = 3,
    TooLarge = 4,
    Internal = 5,
    Exhausted = 6,
}

#[derive(Debug)]
pub struct Failure {
    pub code: Code,
    pub message: String,
}

pub type Outcome<T> = Result<T, Failure>;

/// A file's text within a message: in quotes, on one line, its control characters escaped, and no more than a line holds.
pub fn shown(text: &str) -> String {
    const MOST: usize = 80;
    let mut escaped: String = text.chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST).is_some() {
        escaped.push_str("...");
    }
    format!("'{escaped}'")
}

pub fn failure<T>(code: Code, message: impl Into<String>) -> Outcome<T> {
    Err(Failure { code, message: message.into() })
}
