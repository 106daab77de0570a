//! Added tokens in text: which stretches of a text are tokens by their spelling, before any other splitting.
//! The matching rules are those of Hugging Face's AddedVocabulary (leftmost, longest, single_word, lstrip, rstrip); what is
//! ours is that a control token may be refused at a place, and that the text there is then searched on for others.

use aho_corasick::{AhoCorasick, Anchored, Input, MatchKind, StartKind};
use regex::Regex;
use std::sync::LazyLock;

use crate::error::{failure, Code, Outcome};

#[derive(Clone, Debug)]
pub struct AddedToken {
    pub id: u32,
    /// As it is searched for: normalized already where the token asks for it.
    pub pattern: String,
    /// As the file spells it.
    pub content: String,
    pub special: bool,
    pub single_word: bool,
    pub lstrip: bool,
    pub rstrip: bool,
}

/// One stretch of a text: an added token, or text between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub token: Option<usize>,
    pub start: usize,
    pub end: usize,
}

pub struct Matcher {
    tokens: Vec<AddedToken>,
    all: Option<AhoCorasick>,
    ordinary: Option<AhoCorasick>,
    ordinary_index: Vec<usize>,
}

fn automaton(patterns: Vec<&str>) -> Outcome<Option<AhoCorasick>> {
    if patterns.is_empty() {
        return Ok(None);
    }
    match AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .start_kind(StartKind::Both)
        .build(patterns)
    {
        Ok(found) => Ok(Some(found)),
        Err(e) => failure(Code::DataLoss, format!("added tokens: {e}")),
    }
}

static WORD: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\w$").expect("a fixed pattern"));

fn is_word(c: char) -> bool {
    WORD.is_match(c.encode_utf8(&mut [0u8; 4]))
}

impl Matcher {
    pub fn new(tokens: Vec<AddedToken>) -> Outcome<Matcher> {
        let tokens: Vec<AddedToken> = tokens.into_iter().filter(|t| !t.pattern.is_empty()).collect();
        let all = automaton(tokens.iter().map(|t| t.pattern.as_str()).collect())?;
        let ordinary_index: Vec<usize> = (0..tokens.len()).filter(|&i| !tokens[i].special).collect();
        let ordinary = automaton(ordinary_index.iter().map(|&i| tokens[i].pattern.as_str()).collect())?;
        Ok(Matcher { tokens, all, ordinary, ordinary_index })
    }

    pub fn tokens(&self) -> &[AddedToken] {
        &self.tokens
    }

    /// Splits `text` into pieces that cover it; `permit(token, start, end)` says whether a match may stand.
    pub fn split(&self, text: &str, mut permit: impl FnMut(&AddedToken, usize, usize) -> bool) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut done = 0;
        let mut at = 0;
        while let Some((index, start, end)) = self.next_permitted(text, at, &mut permit) {
            at = end;
            let token = &self.tokens[index];
            if token.single_word && !stands_alone(text, start, end) {
                continue;
            }
            let (mut start, mut end) = (start, end);
            if token.lstrip {
                start = done.max(text[..start].trim_end().len());
            }
            if token.rstrip {
                end = text.len() - text[end..].trim_start().len();
            }
            if done < start {
                pieces.push(Piece { token: None, start: done, end: start });
            }
            pieces.push(Piece { token: Some(index), start, end });
            done = end;
            // The reference does not skip tokens inside the spaces that rstrip took; nor do we step back into them.
            at = at.max(done.min(text.len()));
        }
        if done < text.len() {
            pieces.push(Piece { token: None, start: done, end: text.len() });
        }
        pieces
    }

    fn next_permitted(
        &self,
        text: &str,
        mut at: usize,
        permit: &mut impl FnMut(&AddedToken, usize, usize) -> bool,
    ) -> Option<(usize, usize, usize)> {
        let all = self.all.as_ref()?;
        loop {
            let found = all.find(Input::new(text).span(at..text.len()))?;
            let index = found.pattern().as_usize();
            if permit(&self.tokens[index], found.start(), found.end()) {
                return Some((index, found.start(), found.end()));
            }
            if let Some(ordinary) = &self.ordinary {
                let here = Input::new(text).span(found.start()..text.len()).anchored(Anchored::Yes);
                if let Some(other) = ordinary.find(here) {
                    let index = self.ordinary_index[other.pattern().as_usize()];
                    if permit(&self.tokens[index], other.start(), other.end()) {
                        return Some((index, other.start(), other.end()));
                    }
                }
            }
            at = found.start() + text[found.start()..].chars().next().map_or(1, char::len_utf8);
        }
    }
}

fn stands_alone(text: &str, start: usize, end: usize) -> bool {
    let before = text[..start].chars().next_back().is_none_or(|c| !is_word(c));
    let after = text[end..].chars().next().is_none_or(|c| !is_word(c));
    before && after
}
