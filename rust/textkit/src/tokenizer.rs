//! One tokenizer of either kind, and what both share: the table of token bytes and the rule for refused control tokens.

use ahash::AHashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::error::Outcome;
use crate::hf::HfTokenizer;
use crate::pieces::Pieces;
use crate::provenance::Masker;
use crate::spm::SpmTokenizer;

pub enum Kind {
    Hf(HfTokenizer),
    Spm(SpmTokenizer),
}

pub struct Tokenizer {
    pub kind: Kind,
    pub pieces: Pieces,
    /// Spelling of each id, empty where the id is unused.
    pub spelling: Vec<String>,
    pub by_spelling: AHashMap<String, u32>,
    /// Added around a text with add_special_tokens, where no post-processor does it (GGUF).
    pub prefix: Option<u32>,
    pub suffix: Option<u32>,
    /// The masker of the last set of further control ids; a process uses one set.
    pub masker: Mutex<Option<(Vec<u32>, Arc<Masker>)>>,
}

/// Which control tokens may be read from a text.
pub enum Control<'a> {
    /// Wherever they are spelled.
    Everywhere,
    Nowhere,
    /// Not where they touch one of these byte ranges (ascending, disjoint); ids in `extra` are control tokens too.
    Outside { tainted: &'a [Range<usize>], extra: &'a [u32] },
}

impl Control<'_> {
    /// May the token `id` be read from bytes start..end of the text?
    pub fn permits(&self, id: u32, special: bool, start: usize, end: usize) -> bool {
        match self {
            Control::Everywhere => true,
            Control::Nowhere => !special,
            Control::Outside { tainted, extra } => {
                if !special && !extra.contains(&id) {
                    return true;
                }
                let first = tainted.partition_point(|r| r.end <= start);
                tainted.get(first).is_none_or(|r| r.start >= end)
            }
        }
    }
}

impl Tokenizer {
    pub fn encode(&self, text: &str, add_special_tokens: bool, control: &Control) -> Outcome<Vec<u32>> {
        let mut ids = match &self.kind {
            Kind::Hf(t) => t.encode(text, add_special_tokens, control)?,
            Kind::Spm(t) => t.encode(text, control),
        };
        if add_special_tokens {
            if let Some(bos) = self.prefix {
                ids.insert(0, bos);
            }
            ids.extend(self.suffix);
        }
        Ok(ids)
    }

    /// Hides the spellings of control tokens: special ones and `extra`.
    pub fn masker(&self, extra: &[u32]) -> Outcome<Arc<Masker>> {
        let mut cached = self.masker.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((ids, masker)) = cached.as_ref() {
            if ids == extra {
                return Ok(masker.clone());
            }
        }
        let mut spellings: Vec<&str> = Vec::new();
        for (id, text) in self.spelling.iter().enumerate() {
            let control = self.pieces.special[id] != 0 || extra.contains(&(id as u32));
            if control && !text.is_empty() {
                spellings.push(text);
            }
        }
        let masker = Arc::new(Masker::new(&spellings)?);
        *cached = Some((extra.to_vec(), masker.clone()));
        Ok(masker)
    }
}
