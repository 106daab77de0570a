// CallJson: reads one call written as {"name": ..., "arguments": {...}}, as most families do.
#pragma once

#include <string>
#include <string_view>

#include "output/json_stream.h"
#include "output/offered_tools.h"
#include "output/output_parser.h"

namespace tailrace {

// Nothing is reported before it is certain to be a call of an offered function: its name and the begin of its
// arguments were read (the arguments may be called "parameters"; "id" and "type" may stand beside them). From then on
// arguments go out as they come. The call has ended when its arguments have: that the object is closed properly is no
// longer asked.
class CallJson {
 public:
  enum class State {
    kOpen,
    kDone,    // the object is closed
    kFailed,  // not a call: unread() and the rest are text
    kBroken,  // began as a call and was ended: unread() and the rest are text
  };

  explicit CallJson(const OfferedTools& tools) : tools_(tools), arguments_(/*object_only=*/true) {}

  // Returns how many bytes belong to the call.
  size_t push(std::string_view text, OutputSink& out);
  // Something that cannot be in a call stands here: it has failed, or broken.
  void interrupt(OutputSink& out);
  // The answer is over; a member that is not complete is left out.
  void finish(OutputSink& out);

  State state() const { return state_; }
  bool begun() const { return begun_; }
  bool ended() const { return ended_; }  // the arguments are complete
  // A marker's spelling here is text of the arguments.
  bool in_arguments_string() const { return expect_ == Expect::kArguments && arguments_.in_string(); }
  // What was pushed and is in nothing that was reported.
  const std::string& unread() const { return unread_; }

 private:
  enum class Expect { kObject, kKeyOrEnd, kKey, kKeyText, kColon, kValue, kName, kOther, kArguments, kCommaOrEnd };

  bool step(char c, OutputSink& out);
  bool end_key();
  bool begin_value(char c, OutputSink& out);
  bool end_object(OutputSink& out);
  size_t push_arguments(std::string_view text, OutputSink& out);
  void begin_if_known(OutputSink& out);
  void end_arguments(OutputSink& out, bool complete);
  bool fail_here();

  const OfferedTools& tools_;
  State state_ = State::kOpen;
  Expect expect_ = Expect::kObject;
  JsonStream arguments_;
  std::string key_, name_, unread_;
  std::string early_;  // arguments that came before the name
  bool has_name_ = false, has_arguments_ = false, begun_ = false, ended_ = false;
};

}  // namespace tailrace
