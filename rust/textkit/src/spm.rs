//! SentencePiece BPE as GGUF files store it (tokenizer.ggml.model llama): every piece has a score, adjacent pieces merge
//! highest score first (leftmost on ties), and what no piece covers falls back to byte tokens.

use ahash::AHashMap;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::added::Matcher;
use crate::tokenizer::Control;

pub struct SpmTokenizer {
    pub ids: AHashMap<String, u32>,
    pub scores: Vec<f32>,
    pub byte_ids: Vec<u32>, // [256]
    pub added: Matcher,
    pub add_space_prefix: bool,
}

#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    len: usize, // 0: merged into its left neighbour
    prev: usize,
    next: usize,
}

const NONE: usize = usize::MAX;

struct Bigram {
    score: f32,
    left: usize,
    right: usize,
    len: usize, // of both together when it was found: differs once one of them has grown
}

impl PartialEq for Bigram {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Bigram {}
impl PartialOrd for Bigram {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Bigram {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl SpmTokenizer {
    pub fn encode(&self, text: &str, control: &Control) -> Vec<u32> {
        let pieces = self.added.split(text, |token, start, end| control.permits(token.id, token.special, start, end));
        let mut ids = Vec::new();
        let mut after_token = true; // a text's begin counts as one
        for piece in pieces {
            match piece.token {
                Some(index) => {
                    ids.push(self.added.tokens()[index].id);
                    after_token = true;
                }
                None => {
                    let prefix = if self.add_space_prefix && after_token { "\u{2581}" } else { "" };
                    let escaped = prefix.to_string() + &text[piece.start..piece.end].replace(' ', "\u{2581}");
                    self.merge(&escaped, &mut ids);
                    after_token = false;
                }
            }
        }
        ids
    }

    fn merge(&self, text: &str, ids: &mut Vec<u32>) {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
        for (start, c) in text.char_indices() {
            let i = symbols.len();
            symbols.push(Symbol { start, len: c.len_utf8(), prev: i.wrapping_sub(1), next: i + 1 });
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        let mut queue = BinaryHeap::with_capacity(symbols.len());
        for right in 1..symbols.len() {
            self.offer(text, &symbols, right - 1, right, &mut queue);
        }
        while let Some(best) = queue.pop() {
            let (left, right) = (symbols[best.left], symbols[best.right]);
            if left.len == 0 || right.len == 0 || left.len + right.len != best.len {
                continue;
            }
            symbols[best.left].len = best.len;
            symbols[best.left].next = right.next;
            symbols[best.right].len = 0;
            if right.next != NONE {
                symbols[right.next].prev = best.left;
            }
            self.offer(text, &symbols, left.prev, best.left, &mut queue);
            self.offer(text, &symbols, best.left, right.next, &mut queue);
        }
        for symbol in symbols.iter().filter(|s| s.len > 0) {
            let piece = &text[symbol.start..symbol.start + symbol.len];
            match self.ids.get(piece) {
                Some(&id) => ids.push(id),
                None => ids.extend(piece.bytes().map(|b| self.byte_ids[b as usize])),
            }
        }
    }

    fn offer(&self, text: &str, symbols: &[Symbol], left: usize, right: usize, queue: &mut BinaryHeap<Bigram>) {
        if left == NONE || right == NONE {
            return;
        }
        let len = symbols[left].len + symbols[right].len;
        let start = symbols[left].start;
        if let Some(&id) = self.ids.get(&text[start..start + len]) {
            queue.push(Bigram { score: self.scores[id as usize], left, right, len });
        }
    }
}
