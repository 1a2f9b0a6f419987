//! What the two sides say of themselves in their first messages: JSON, of which a server must understand one word.
//!
//! Capabilities are in an object of that name; a reader of all of JSON is not needed to find one that is true or not,
//! and text that is no JSON proposes nothing.

use super::dma::MAX_REGIONS;
use super::message::{MAX_DATA, MAX_FILES};

/// A piece of JSON.
enum Token<'a> {
    Open,
    Close,
    Comma,
    Text(&'a [u8]),
    Word(&'a [u8]),
}

/// The first piece of `text`, and what follows.
fn split(text: &[u8]) -> Option<(Token<'_>, &[u8])> {
    let start = text
        .iter()
        .position(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | b':'))?;
    let (first, rest) = text.get(start..)?.split_first()?;
    let token = match first {
        b'{' | b'[' => Token::Open,
        b'}' | b']' => Token::Close,
        b',' => Token::Comma,
        b'"' => {
            let mut escaped = false;
            let end = rest.iter().position(|byte| {
                let ends = *byte == b'"' && !escaped;
                escaped = *byte == b'\\' && !escaped;
                ends
            })?;
            let (inside, after) = rest.split_at_checked(end)?;
            return Some((Token::Text(inside), after.get(1..)?));
        }
        _ => {
            let word = text.get(start..)?;
            let ends = |byte: &u8| !byte.is_ascii_alphanumeric() && !b"+-.".contains(byte);
            let end = word.iter().position(ends).unwrap_or(word.len()).max(1);
            let (word, after) = word.split_at_checked(end)?;
            return Some((Token::Word(word), after));
        }
    };
    Some((token, rest))
}

/// Does `text` say that `capability` is true?
pub(super) fn proposes(text: &[u8], capability: &[u8]) -> bool {
    let (mut rest, mut depth) = (text, 0_usize);
    let (mut key, mut inside): (&[u8], _) = (b"", false);
    while let Some((token, after)) = split(rest) {
        rest = after;
        match token {
            Token::Open => {
                depth += 1;
                inside = match depth {
                    2 => key == b"capabilities",
                    _ => inside,
                };
                key = b"";
            }
            Token::Close => {
                depth = depth.saturating_sub(1);
                key = b"";
            }
            Token::Comma => key = b"",
            Token::Text(text) => key = text,
            Token::Word(word) => {
                if depth == 2 && inside && key == capability && word == b"true" {
                    return true;
                }
            }
        }
    }
    false
}

/// What the server says, to a client that proposes `write_multiple` or not.
pub(super) fn ours(write_multiple: bool) -> String {
    let multiple = if write_multiple {
        ",\"write_multiple\":true"
    } else {
        ""
    };
    format!(
        "{{\"capabilities\":{{\"max_msg_fds\":{MAX_FILES},\"max_data_xfer_size\":{MAX_DATA},\
         \"max_dma_maps\":{MAX_REGIONS},\"pgsizes\":4096{multiple}}}}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_is_proposed_where_it_is_true_among_the_capabilities_and_nowhere_else() {
        let yes = [
            r#"{"capabilities":{"write_multiple":true}}"#,
            r#"{ "capabilities" : { "pgsizes" : 4096 , "write_multiple" : true } }"#,
            r#"{"x":[{"capabilities":1}],"capabilities":{"a":{"b":-1.5e3},"write_multiple":true}}"#,
            r#"{"capabilities":{"name":"a \" and \\","write_multiple":true,"z":[]}}"#,
        ];
        let no = [
            "",
            "{",
            "\"",
            r#"{"capabilities":{"write_multiple":false}}"#,
            r#"{"capabilities":{"write_multiple":"true"}}"#,
            r#"{"capabilities":{"twin":{"write_multiple":true}}}"#,
            r#"{"others":{"write_multiple":true}}"#,
            r#"{"write_multiple":true}"#,
            r#"{"capabilities":{"x":"write_multiple","y":true}}"#,
            r#"{"capabilities":{"write_multiple"#,
        ];
        for text in yes {
            assert!(proposes(text.as_bytes(), b"write_multiple"), "{text}");
        }
        for text in no {
            assert!(!proposes(text.as_bytes(), b"write_multiple"), "{text}");
        }
    }

    #[test]
    fn what_the_server_says_is_what_it_would_read() {
        assert!(proposes(ours(true).as_bytes(), b"write_multiple"));
        assert!(!proposes(ours(false).as_bytes(), b"write_multiple"));
        let text = r#"{"capabilities":{"max_msg_fds":16,"max_data_xfer_size":65536,"max_dma_maps":65535,"pgsizes":4096}}"#;
        assert_eq!(ours(false), text);
    }
}
