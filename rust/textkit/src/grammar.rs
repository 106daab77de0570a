//! Grammars over a vocabulary (llguidance): compiled once per request, then asked which tokens may come next.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{mpsc, Arc, Mutex};
use std::time::Duration;

use llguidance::api::{GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{
    ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie,
};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value as Json;

use crate::error::{failure, Code, Outcome};
use crate::gbnf::{is_gbnf, to_lark};
use crate::tokenizer::Tokenizer;

const MAX_GRAMMAR_BYTES: usize = 512 << 10;
/// Of a grammar in Lark's syntax or a regex, whose compiler recurses from rule to rule.
const MAX_LARK_BYTES: usize = 64 << 10;
const MAX_NESTING: usize = 100;
/// Touched as far as a grammar nests: what the bounds above let through fits.
const COMPILER_STACK_BYTES: usize = 256 << 20;
const MAX_COMPILERS: usize = 4;
/// Compiled grammars that are kept: an agent sends the same tools again and again.
const MAX_KEPT: usize = 16;
const COMPILE_TIMEOUT: Duration = Duration::from_secs(10);
/// A model that only writes white space between two values would never end.
const WHITE_SPACE: &str = r"[\x20\x0A\x0D\x09]{1,40}";

/// A vocabulary, prepared for grammars.
pub struct Grammars {
    factory: ParserFactory,
    compilers: AtomicUsize,
    /// By source, the last used last.
    kept: Mutex<Vec<(String, Arc<Grammar>)>>,
}

/// A compiled grammar at its begin.
pub struct Grammar {
    start: Matcher,
}

/// A grammar's state along one answer.
pub struct Run {
    matcher: Matcher,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Lark,
    JsonSchema,
    Regex,
}

fn limits() -> ParserLimits {
    ParserLimits {
        max_lexer_states: 30_000, // 1-2 KB each, of every row
        max_grammar_size: 300_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

impl Grammars {
    /// `control`: tokens that grammars name by id alone, besides special ones. `eos`: at least one.
    pub fn new(tokenizer: &Tokenizer, eos: &[u32], control: &[u32]) -> Outcome<Grammars> {
        let pieces = &tokenizer.pieces;
        let size = pieces.len() as u32;
        if eos.is_empty() || eos.iter().any(|&id| id >= size) {
            return failure(Code::Unsupported, "the model names no token that ends an answer");
        }
        let mut words = Vec::with_capacity(size as usize);
        for id in 0..size {
            let bytes = &pieces.blob[pieces.start[id as usize] as usize..pieces.start[id as usize + 1] as usize];
            if pieces.special[id as usize] != 0 || control.contains(&id) || eos.contains(&id) {
                let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
                word.extend_from_slice(tokenizer.spelling[id as usize].as_bytes());
                words.push(word);
            } else if bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
                words.push(Vec::new()); // 0xff begins no UTF-8: it would pass for a special token
            } else {
                words.push(bytes.to_vec());
            }
        }
        let trie = TokTrie::from(&TokRxInfo::new(size, eos[0]), &words).with_eos_tokens(eos);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices);
        let Ok(mut factory) = factory else {
            return failure(Code::Internal, "the vocabulary could not be prepared for grammars");
        };
        *factory.limits_mut() = limits();
        factory.quiet();
        Ok(Grammars { factory, compilers: AtomicUsize::new(0), kept: Mutex::new(Vec::new()) })
    }

    /// `outer` (Lark, may be empty) is the whole answer and calls `body`, unless that is empty, as @body. `keep`: for
    /// whoever asks for the same again.
    pub fn compile(self: &Arc<Self>, outer: &str, kind: Kind, body: &str, keep: bool) -> Outcome<Arc<Grammar>> {
        let grammar = top_level(outer, kind, body)?;
        let source = format!("{outer}\0{}\0{body}", kind as i32);
        let kept = || self.kept.lock().unwrap_or_else(|e| e.into_inner());
        {
            let mut kept = kept();
            if let Some(at) = kept.iter().position(|(key, _)| *key == source) {
                let entry = kept.remove(at);
                kept.push(entry);
                return Ok(kept[kept.len() - 1].1.clone());
            }
        }
        let compiled = Arc::new(self.compile_apart(grammar)?);
        if !keep {
            return Ok(compiled);
        }
        let mut kept = kept();
        if kept.len() >= MAX_KEPT {
            kept.remove(0);
        }
        kept.push((source, compiled.clone()));
        Ok(compiled)
    }

    /// On a thread of its own: grammars recurse deeply, and one that takes too long is given up.
    fn compile_apart(self: &Arc<Self>, grammar: TopLevelGrammar) -> Outcome<Grammar> {
        if self.compilers.fetch_add(1, Ordering::SeqCst) >= MAX_COMPILERS {
            self.compilers.fetch_sub(1, Ordering::SeqCst);
            return failure(Code::Exhausted, "too many grammars are being compiled; try again");
        }
        let (send, receive) = mpsc::channel();
        let this = self.clone();
        let compile = move || {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| this.build(grammar)));
            this.compilers.fetch_sub(1, Ordering::SeqCst);
            let _ = send.send(result);
        };
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(COMPILER_STACK_BYTES);
        if thread.spawn(compile).is_err() {
            self.compilers.fetch_sub(1, Ordering::SeqCst);
            return failure(Code::Exhausted, "no thread to compile the grammar; try again");
        }
        match receive.recv_timeout(COMPILE_TIMEOUT) {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => failure(Code::Invalid, "the grammar cannot be compiled"),
            Err(_) => failure(Code::TooLarge, "the grammar takes too long to compile"),
        }
    }

    fn build(&self, grammar: TopLevelGrammar) -> Outcome<Grammar> {
        let mut start = Matcher::new(self.factory.create_parser(grammar));
        let mask = match start.compute_mask_or_eos() {
            Ok(mask) => mask,
            Err(e) => return failure(Code::Invalid, readable(&e.to_string())),
        };
        if mask.is_zero() {
            return failure(Code::Invalid, "no token of this model can begin a text of the grammar");
        }
        Ok(Grammar { start })
    }
}

impl Grammar {
    pub fn start(&self) -> Run {
        Run { matcher: self.start.deep_clone() }
    }
}

impl Run {
    /// Goes on by `ids`; then bit i of `mask` says whether token i may come next. Ends of the answer are allowed where
    /// the grammar accepts, and are all that is allowed where it cannot go on.
    pub fn next(&mut self, ids: &[u32], mask: &mut [u32]) -> Outcome<()> {
        match self.advance(ids) {
            Ok(allowed) if !allowed.is_zero() => {
                let words = allowed.as_slice();
                let count = words.len().min(mask.len());
                mask[..count].copy_from_slice(&words[..count]);
                mask[count..].fill(0);
                Ok(())
            }
            Ok(_) => failure(Code::Invalid, "the grammar leads to a place where no token is allowed"),
            Err(e) => failure(Code::Invalid, readable(&e.to_string())),
        }
    }

    fn advance(&mut self, ids: &[u32]) -> anyhow::Result<SimpleVob> {
        self.matcher.consume_tokens(ids)?;
        self.matcher.compute_mask_or_eos()
    }
}

/// What llguidance says in words of its own, and what a request is told.
const TOLD: [(&str, &str); 14] = [
    ("NoExtension", "no token of this model goes on a text of the grammar"),
    ("doesn't satisfy the grammar", "the answer has left the grammar"),
    ("): lexer error", "the grammar cannot be read as Lark: a quote or another sign is out of place"),
    ("Current row has", "a text of the grammar can be read in too many ways at once"),
    ("parser error:", "a text of the grammar can be read in too many ways at once"),
    ("lexer error:", "the grammar's regexes and terminals are too complex together"),
    ("fuel exhausted", "the grammar's regexes and terminals are too complex together"),
    ("lexer precomputation failed", "the grammar's regexes and terminals are too complex together"),
    ("initial lexer configuration", "the grammar's regexes and terminals are too complex together"),
    ("grammar size (number of symbols)", "the grammar has too many parts"),
    ("is not present in a registry", "a $ref of the schema leads out of it"),
    ("schema too large", "the schema has too many parts"),
    ("oneOf constraints are not supported", "oneOf: several of its alternatives can be true of one value; say anyOf"),
    ("ParserTooComplex", "a text of the grammar can be read in too many ways at once"),
];

/// The first line of an error, in the request's terms: later ones quote the grammar.
fn readable(message: &str) -> String {
    let first = message.lines().next().unwrap_or_default();
    if let Some((_, told)) = TOLD.iter().find(|(said, _)| first.contains(said)) {
        return told.to_string();
    }
    if let Some((_, why)) = message.split_once("\nerror: ").filter(|_| first.contains("regex parse error:")) {
        let regex = first.split_once("invalid regex ").and_then(|(_, rest)| rest.rsplit_once(" (in "));
        let regex = regex.map_or("a pattern of the schema", |(quoted, _)| quoted);
        return format!("{regex} is no regex: {}", why.lines().next().unwrap_or_default());
    }
    // "at LINE(COLUMN): what"
    let text = first.strip_prefix("at ").unwrap_or(first);
    let located = text.split_once("): ").and_then(|(place, what)| {
        let (line, column) = place.split_once('(')?;
        let whole = format!("line {}, column {}: {what}", line.parse::<u32>().ok()?, column.parse::<u32>().ok()?);
        Some(whole)
    });
    let told = located.unwrap_or_else(|| first.to_string());
    told.split("; following special tokens").next().unwrap_or_default().chars().take(400).collect()
}

fn top_level(outer: &str, kind: Kind, body: &str) -> Outcome<TopLevelGrammar> {
    let text_limit = if kind == Kind::JsonSchema { MAX_GRAMMAR_BYTES } else { MAX_LARK_BYTES };
    if outer.len() > MAX_GRAMMAR_BYTES || body.len() > text_limit {
        return failure(Code::TooLarge, format!("the grammar is longer than {} KiB", text_limit >> 10));
    }
    let mut grammars = Vec::new();
    if !outer.is_empty() {
        grammars.push(GrammarWithLexer::from_lark(outer.to_string()));
    }
    if !body.is_empty() {
        let mut grammar = match kind {
            Kind::Lark if is_gbnf(body) => GrammarWithLexer::from_lark(to_lark(body)?),
            Kind::Lark => GrammarWithLexer::from_lark(check_nesting(body)?.to_string()),
            Kind::Regex => GrammarWithLexer::from_regex(check_nesting(body)?),
            Kind::JsonSchema => GrammarWithLexer::from_json_schema(schema(body)?),
        };
        grammar.name = Some("body".into());
        grammars.push(grammar);
    }
    Ok(TopLevelGrammar { grammars, max_tokens: None })
}

fn check_nesting(text: &str) -> Outcome<&str> {
    let (mut depth, mut escaped) = (0usize, false);
    for c in text.chars() {
        match c {
            '(' | '[' | '{' if !escaped => depth += 1,
            ')' | ']' | '}' if !escaped => depth = depth.saturating_sub(1),
            _ => (),
        }
        escaped = c == '\\' && !escaped;
        if depth > MAX_NESTING {
            return failure(Code::TooLarge, format!("the grammar has more than {MAX_NESTING} brackets in each other"));
        }
    }
    Ok(text)
}

/// A schema with the settings that this server compiles with.
pub fn schema(text: &str) -> Outcome<Json> {
    let json: Json = match serde_json::from_str(text) {
        Ok(json) => json,
        Err(e) => return failure(Code::Invalid, format!("the schema is not JSON: {e}")),
    };
    let mut object = match json {
        Json::Object(object) => object,
        Json::Bool(_) => serde_json::Map::from_iter([("allOf".to_string(), Json::Array(vec![json]))]),
        _ => return failure(Code::Invalid, "the schema must be an object or a boolean"),
    };
    object.insert("x-guidance".into(), serde_json::json!({ "whitespace_pattern": WHITE_SPACE }));
    Ok(Json::Object(object))
}
