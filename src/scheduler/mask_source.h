// MaskSource: who computes, elsewhere, which tokens each constrained answer may go on with. The scheduler asks and reads;
// nothing here waits.
#pragma once

#include <cstdint>
#include <memory>

#include "base/request.h"

namespace tailrace {

// The masks of one answer. Destroying it ends their computation.
class MaskRun {
 public:
  virtual ~MaskRun() = default;
  // The answer went on by `token`: the next mask is computed from now on.
  virtual void push(TokenId token) = 0;
  // The newest mask, and those that follow, are put into the device's table at `slot`. -1: nowhere; nothing is written
  // to the last slot any more.
  virtual void bind(int32_t slot) = 0;
  // Tokens of prompt and answer that the newest mask follows, -1 before the first; it lies in the table then.
  virtual int32_t ready_len() const = 0;
  // Not ok: there will be no more masks, and why.
  virtual Status failure() const = 0;
};

class MaskSource {
 public:
  virtual ~MaskSource() = default;
  // `request` has a constraint; its first mask is computed from now on.
  virtual std::unique_ptr<MaskRun> open(std::shared_ptr<const Request> request) = 0;
};

}  // namespace tailrace
