//! Tokenizers from GGUF metadata.

use ahash::AHashMap;
use serde_json::json;
use tokenizers::{AddedToken as LibToken, PreTokenizerWrapper, Tokenizer as LibTokenizer};

use crate::added::{AddedToken, Matcher};
use crate::error::{failure, shown, Code, Failure, Outcome};
use crate::hf;
use crate::pieces::{byte_level, fallback_byte, Pieces};
use crate::spm::SpmTokenizer;
use crate::tokenizer::{Kind, Tokenizer};

const TYPE_UNKNOWN: i32 = 2;
const TYPE_CONTROL: i32 = 3;
const TYPE_USER_DEFINED: i32 = 4;
const TYPE_BYTE: i32 = 6;

pub struct Spec<'a> {
    pub model: &'a str,
    pub pre: &'a str,
    pub tokens: Vec<&'a str>,
    pub scores: &'a [f32], // empty or one per token
    pub types: Vec<i32>,   // one per token
    pub merges: Vec<&'a str>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unk: Option<u32>,
    pub add_bos: bool,
    pub add_eos: bool,
    pub add_space_prefix: bool,
}

pub fn build(mut spec: Spec) -> Outcome<Tokenizer> {
    let n = spec.tokens.len();
    if n == 0 || spec.types.len() != n || !(spec.scores.is_empty() || spec.scores.len() == n) {
        return failure(Code::DataLoss, "tokens, scores and token types differ in number, or there are none");
    }
    for (name, id) in [("bos", spec.bos), ("eos", spec.eos), ("unknown", spec.unk)] {
        if id.is_some_and(|id| id as usize >= n) {
            return failure(Code::DataLoss, format!("the {name} token id is outside the vocabulary of {n}"));
        }
    }
    // Some converters leave these two marked as ordinary.
    for id in [spec.bos, spec.eos].into_iter().flatten() {
        if spec.types[id as usize] != TYPE_UNKNOWN {
            spec.types[id as usize] = TYPE_CONTROL;
        }
    }
    let prefix = if spec.add_bos { Some(needed(spec.bos, "add_bos_token is set, but there is no bos token")?) } else { None };
    let suffix = if spec.add_eos { Some(needed(spec.eos, "add_eos_token is set, but there is no eos token")?) } else { None };
    let mut tokenizer = match spec.model {
        "gpt2" => byte_level_bpe(&spec)?,
        "llama" => sentence_piece(&spec)?,
        other => return failure(Code::Unsupported, format!("tokenizer model '{other}' is not one of gpt2, llama")),
    };
    tokenizer.prefix = prefix;
    tokenizer.suffix = suffix;
    Ok(tokenizer)
}

fn needed(id: Option<u32>, message: &str) -> Outcome<u32> {
    id.ok_or_else(|| Failure { code: Code::DataLoss, message: message.to_string() })
}

fn is_special(kind: i32) -> bool {
    kind == TYPE_CONTROL || kind == TYPE_UNKNOWN
}

/// Spelling -> id; the first of equal spellings counts.
fn spelling_map(tokens: &[&str]) -> AHashMap<String, u32> {
    let mut ids = AHashMap::with_capacity(tokens.len());
    for (id, token) in tokens.iter().enumerate() {
        ids.entry(token.to_string()).or_insert(id as u32);
    }
    ids
}

fn assemble(spec: &Spec, kind: Kind, pieces: Pieces) -> Tokenizer {
    let spelling: Vec<String> = spec.tokens.iter().map(|t| t.to_string()).collect();
    Tokenizer { kind, pieces, spelling, by_spelling: spelling_map(&spec.tokens), prefix: None, suffix: None, masker: Default::default() }
}

fn byte_level_bpe(spec: &Spec) -> Outcome<Tokenizer> {
    let Some(split) = Split::named(spec.pre) else {
        let known: Vec<&str> = SPLITS.iter().flat_map(|(names, _)| names.iter().copied()).collect();
        return failure(
            Code::Unsupported,
            format!("tokenizer.ggml.pre '{}' is unknown; known: {}", spec.pre, known.join(", ")),
        );
    };
    let mut merges = Vec::with_capacity(spec.merges.len());
    for merge in &spec.merges {
        // A piece never begins with a space, but may be a lone letter: search from the second character on.
        let first = merge.chars().next().map_or(0, char::len_utf8);
        match merge[first..].find(' ') {
            Some(at) => merges.push((merge[..first + at].to_string(), merge[first + at + 1..].to_string())),
            None => return failure(Code::DataLoss, format!("tokenizer.ggml.merges: {} has no space", shown(merge))),
        }
    }
    let model = hf::bpe_model(spelling_map(&spec.tokens), merges, split.ignore_merges)?;
    let mut inner = LibTokenizer::new(model);
    inner.with_pre_tokenizer(Some(split.pre_tokenizer()?));
    let mut added = Vec::new();
    for (token, &kind) in spec.tokens.iter().zip(&spec.types) {
        if is_special(kind) || kind == TYPE_USER_DEFINED {
            added.push(LibToken::from(token.to_string(), is_special(kind)).normalized(false));
        }
    }
    inner.add_tokens(added).map_err(|e| Failure { code: Code::DataLoss, message: e.to_string() })?;
    let library = hf::from_library(inner, &json!({"type": "ByteLevel"}))?;

    let mut pieces = Pieces::empty(spec.types.iter().map(|&t| u8::from(is_special(t))).collect());
    for (token, &kind) in spec.tokens.iter().zip(&spec.types) {
        if is_special(kind) || kind == TYPE_USER_DEFINED {
            pieces.push(token.as_bytes());
        } else {
            pieces.push(&byte_level(token));
        }
    }
    Ok(assemble(spec, library.kind, pieces))
}

fn sentence_piece(spec: &Spec) -> Outcome<Tokenizer> {
    if spec.scores.is_empty() {
        return failure(Code::DataLoss, "tokenizer.ggml.scores is missing");
    }
    if spec.scores.iter().any(|s| s.is_nan()) {
        return failure(Code::DataLoss, "tokenizer.ggml.scores holds a NaN");
    }
    let ids = spelling_map(&spec.tokens);
    let mut byte_ids = Vec::with_capacity(256);
    for byte in 0..=255u8 {
        let own = ids.get(&format!("<0x{byte:02X}>")).copied();
        match own.or(spec.unk) {
            Some(id) => byte_ids.push(id),
            None => return failure(Code::DataLoss, format!("no token for byte 0x{byte:02X}, and no unknown token")),
        }
    }
    let mut added = Vec::new();
    let mut pieces = Pieces::empty(spec.types.iter().map(|&t| u8::from(is_special(t))).collect());
    for (id, (token, &kind)) in spec.tokens.iter().zip(&spec.types).enumerate() {
        match fallback_byte(token) {
            Some(byte) if kind == TYPE_BYTE => pieces.push(&[byte]),
            _ if is_special(kind) || kind == TYPE_USER_DEFINED => pieces.push(token.as_bytes()),
            _ => pieces.push(token.replace('\u{2581}', " ").as_bytes()),
        }
        if is_special(kind) || kind == TYPE_USER_DEFINED {
            added.push(AddedToken {
                id: id as u32,
                pattern: token.to_string(),
                content: token.to_string(),
                special: is_special(kind),
                single_word: false,
                lstrip: false,
                rstrip: false,
            });
        }
    }
    if spec.add_space_prefix {
        pieces.strip = " ".to_string();
        pieces.strip_count = 1;
    }
    let spm = SpmTokenizer {
        ids,
        scores: spec.scores.to_vec(),
        byte_ids,
        added: Matcher::new(added)?,
        add_space_prefix: spec.add_space_prefix,
    };
    Ok(assemble(spec, Kind::Spm(spm), pieces))
}

/// How byte-level BPE cuts text before merging.
struct Split {
    regexes: &'static [&'static str],
    ignore_merges: bool, // a piece that is a token as a whole is taken as it is
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";

/// Names of tokenizer.ggml.pre -> regexes, applied one after the other.
const SPLITS: [(&[&str], Split); 9] = [
    (&["gpt-2", "gpt2", "mpt", "olmo", "phi-2", "jais", "trillion", "granite-docling"],
     Split { regexes: &[GPT2], ignore_merges: false }),
    (&["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
     Split { regexes: &[r"\p{N}", GPT2], ignore_merges: false }),
    (&["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"], Split { regexes: &[LLAMA3], ignore_merges: true }),
    (&["dbrx", "smaug-bpe", "chatglm-bpe", "glm4"], Split { regexes: &[LLAMA3], ignore_merges: false }),
    (&["qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "grok-2"], Split { regexes: &[QWEN2], ignore_merges: false }),
    (&["qwen35"], Split { regexes: &[QWEN35], ignore_merges: false }),
    (&["gpt-4o", "llama4", "o200k"], Split { regexes: &[O200K], ignore_merges: false }),
    (&["tekken"], Split { regexes: &[TEKKEN], ignore_merges: true }),
    (&["deepseek-v3"],
     Split { regexes: &[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3], ignore_merges: false }),
];

impl Split {
    fn named(pre: &str) -> Option<&'static Split> {
        SPLITS.iter().find(|(names, _)| names.contains(&pre)).map(|(_, split)| split)
    }

    fn pre_tokenizer(&self) -> Outcome<PreTokenizerWrapper> {
        let mut steps: Vec<_> = self
            .regexes
            .iter()
            .map(|re| json!({"type": "Split", "pattern": {"Regex": re}, "behavior": "Isolated", "invert": false}))
            .collect();
        steps.push(json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}));
        match serde_json::from_value(json!({"type": "Sequence", "pretokenizers": steps})) {
            Ok(pre_tokenizer) => Ok(pre_tokenizer),
            Err(e) => failure(Code::Internal, format!("split regexes: {e}")),
        }
    }
}
