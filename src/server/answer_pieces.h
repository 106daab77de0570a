// What an answer's choices produce, piece by piece: found by ChoiceStream, worded by an AnswerWriter.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/request.h"

namespace tailrace {

struct AnswerPiece {
  enum class Kind { kContent, kReasoning, kCall };

  Kind kind = Kind::kContent;
  std::string text;           // of a call: its arguments
  int32_t call = -1;          // the call's index in the choice
  std::string call_id, name;  // in a call's first piece; empty in later ones
  bool complete = false;      // in a call's last piece, when the model wrote it to its end

  // Whether `next` is more of the same.
  bool goes_on(const AnswerPiece& next) const { return kind == next.kind && call == next.call; }
  bool speaks() const { return !text.empty() || !call_id.empty(); }
};

// A token whose log probabilities are due.
struct ListedToken {
  TokenEvent event;
  int32_t prompt_at = -1; // of an echoed prompt: which of its tokens; the first has no log probability
  bool content = false;  // outside of reasoning, calls and their markers
  int32_t run = 0;       // pieces of another kind or call that had begun by then, this token's included
};

// What became certain since the last take, in the order in which it was generated.
struct ChoiceDelta {
  std::vector<AnswerPiece> pieces;   // neighbours differ in kind or call
  std::vector<ListedToken> logprobs; // empty unless asked for

  bool empty() const {
    return std::none_of(pieces.begin(), pieces.end(), [](const AnswerPiece& piece) { return piece.speaks(); });
  }

  void add(AnswerPiece piece) {
    if (pieces.empty() || !pieces.back().goes_on(piece)) return pieces.push_back(std::move(piece));
    pieces.back().text += piece.text;
    pieces.back().complete |= piece.complete;
  }
  void append(ChoiceDelta more) {
    for (auto& piece : more.pieces) add(std::move(piece));
    for (auto& token : more.logprobs) logprobs.push_back(std::move(token));
  }

  // All content, or all reasoning, as one text.
  std::string text_of(AnswerPiece::Kind kind) const {
    std::string out;
    for (const auto& piece : pieces) {
      if (piece.kind == kind) out += piece.text;
    }
    return out;
  }
  // Of each call the piece with what there is to say of it.
  std::vector<AnswerPiece> calls() const {
    std::vector<AnswerPiece> out;
    for (const auto& piece : pieces) {
      if (piece.kind == AnswerPiece::Kind::kCall && piece.speaks()) out.push_back(piece);
    }
    return out;
  }
};

}  // namespace tailrace
