// StepDriver: hand-made steps on a model, without scheduler or engine loop, to look at logits.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/engine_host.h"

namespace tailrace {

class StepDriver {
 public:
  // Fails the test (and leaves ok() false) when the model cannot be made. Rows own equal shares of every KV pool.
  explicit StepDriver(const EngineSetup& setup);

  bool ok() const { return host_ != nullptr; }
  int64_t vocab() const { return host_->report().config.vocab; }
  const ModelConfig& config() const { return host_->report().config; }
  const Model& model() const { return host_->model(); }

  // Starts row `slot` over with an empty context; or at position `at`, as if so many tokens had gone before, whose keys
  // and values are whatever is there.
  void restart(int slot, int32_t at = 0);
  // Adds rows to the pending step: all decode rows (one token) before the first extend row. The row's last token samples.
  void decode(int slot, TokenId token);
  void extend(int slot, const std::vector<TokenId>& tokens);
  // Runs the pending step. Returns the logits that follow each row, in the order they were added.
  std::vector<std::vector<float>> run();

  // Logits at every chunk's last token, of one row from an empty context in chunks of `chunk` tokens. chunk 1: by decode
  // steps behind a first extend of one token.
  std::vector<std::vector<float>> logits_in_chunks(const std::vector<TokenId>& tokens, int chunk);

 private:
  void add(int slot, const std::vector<TokenId>& tokens, bool decode);

  RequestQueue queue_{1};
  EngineStatus status_;
  std::unique_ptr<EngineHost> host_;
  std::shared_ptr<Request> request_ = std::make_shared<Request>();
  std::vector<int32_t> len_;
  std::vector<bool> fresh_;  // restarted and not run since
  StepPlan plan_;
  uint64_t step_ = 0;
};

}  // namespace tailrace
