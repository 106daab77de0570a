// CallArguments: one call whose name is known and whose arguments come as JSON.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "output/json_stream.h"
#include "output/output_parser.h"

namespace tailrace {

// The call is reported with the first byte of its arguments, and ends with their last.
class CallArguments {
 public:
  explicit CallArguments(std::string name) : name_(std::move(name)), json_(/*object_only=*/true) {}

  // Returns how many bytes belong to the arguments.
  size_t push(std::string_view text, OutputSink& out) {
    std::string json;
    const size_t taken = json_.push(text, &json);
    if (!json.empty() && !std::exchange(begun_, true)) out.begin_call(name_);
    out.arguments(json);
    if (json_.state() == JsonStream::State::kDone) end(true, out);
    if (json_.state() == JsonStream::State::kBroken) interrupt(out);
    return taken;
  }
  // Something that cannot be in arguments stands here.
  void interrupt(OutputSink& out) {
    if (ended_) return;
    unread_ = json_.unwritten();
    if (begun_) end(false, out);
  }
  // The arguments are over; a member that is not complete is left out.
  void finish(OutputSink& out) {
    if (begun_) end(false, out);
  }

  bool begun() const { return begun_; }
  bool ended() const { return ended_; }
  bool broken() const { return json_.state() == JsonStream::State::kBroken; }
  bool all_written() const { return json_.unwritten().empty(); }
  bool in_string() const { return json_.in_string(); }
  // After a break or an interruption: what was read and not reported.
  const std::string& unread() const { return unread_; }

 private:
  void end(bool complete, OutputSink& out) {
    if (std::exchange(ended_, true)) return;
    std::string json;
    json_.close(&json);
    out.arguments(json);
    out.end_call(complete);
  }

  const std::string name_;
  JsonStream json_;
  std::string unread_;
  bool begun_ = false, ended_ = false;
};

}  // namespace tailrace
