#include "ids/workload.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "weights/tensor.h"

namespace tailrace {
namespace {

constexpr std::chrono::microseconds kLook(100);
constexpr int64_t kStuckNs = 600'000'000'000;

Expected<std::vector<std::vector<TokenId>>> read_prompts(const std::string& path) {
  std::ifstream file(path);
  if (!file) return fail(StatusCode::kNotFound, "--prompt-file " + path + ": cannot be read");
  std::vector<std::vector<TokenId>> prompts;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::replace(line.begin(), line.end(), ',', ' ');
    std::istringstream words(line);
    std::vector<TokenId> ids;
    for (std::string word; words >> word;) {
      TokenId id = 0;
      const char* end = word.data() + word.size();
      if (const auto read = std::from_chars(word.data(), end, id); read.ec != std::errc() || read.ptr != end) {
        return fail(StatusCode::kInvalidArgument,
                    path + ", line " + std::to_string(number) + ": not a list of token ids: " + printable(word));
      }
      ids.push_back(id);
    }
    if (!ids.empty()) prompts.push_back(std::move(ids));
  }
  if (prompts.empty()) return fail(StatusCode::kInvalidArgument, path + " has no prompts");
  return prompts;
}

std::vector<std::vector<TokenId>> random_prompts(const IdsOptions& options, int64_t vocab, bool spread) {
  std::mt19937_64 random(options.seed);
  std::vector<std::vector<TokenId>> prompts(options.prompts);
  for (auto& ids : prompts) {
    ids.resize(spread ? 1 + random() % options.prompt_len : options.prompt_len);
    for (TokenId& id : ids) id = static_cast<TokenId>(random() % vocab);
  }
  return prompts;
}

}  // namespace

Expected<std::vector<Request>> make_requests(const IdsOptions& options, int64_t vocab, bool spread) {
  std::vector<std::vector<TokenId>> prompts;
  if (options.prompt_file.empty()) {
    prompts = random_prompts(options, vocab, spread);
  } else {
    auto read = read_prompts(options.prompt_file);
    if (!read) return fail(read.error());
    prompts = std::move(*read);
  }
  std::vector<Request> requests;
  for (auto& ids : prompts) {
    for (TokenId id : ids) {
      if (id < 0 || id >= vocab) {
        return fail(StatusCode::kInvalidArgument, "prompt " + std::to_string(requests.size()) + " has id " +
                                                      std::to_string(id) + "; the vocabulary has " +
                                                      std::to_string(vocab));
      }
    }
    Request request;
    request.prompt_ids = std::move(ids);
    request.max_tokens = options.output_len;
    request.stop_token_ids = options.stop_ids;
    request.sampling.temperature = options.temperature;
    request.sampling.seed = options.seed + requests.size();
    requests.push_back(std::move(request));
  }
  return requests;
}

Expected<WorkloadResult> run_workload(EngineClient& client, const std::vector<Request>& requests, int32_t concurrency,
                                      double arrivals_ms) {
  const size_t at_once = concurrency > 0 ? static_cast<size_t>(concurrency) : requests.size();
  WorkloadResult result;
  result.answers.resize(requests.size());
  result.begun_ns = now_ns();
  std::vector<std::pair<size_t, std::shared_ptr<const Request>>> open;
  int64_t moved_ns = result.begun_ns;
  size_t next = 0;
  while (next < requests.size() || !open.empty()) {
    const auto due = [&] { return now_ns() >= result.begun_ns + static_cast<int64_t>(arrivals_ms * 1e6 * next); };
    while (next < requests.size() && open.size() < at_once && due()) {
      result.answers[next].prompt_len = static_cast<int32_t>(requests[next].prompt_ids.size());
      result.answers[next].submitted_ns = moved_ns = now_ns();
      auto submitted = client.submit(requests[next]);
      if (!submitted) return fail(submitted.error());
      open.emplace_back(next++, std::move(*submitted));
    }
    // Looked at from here, so that the engine thread wakes nobody while it is being measured.
    std::this_thread::sleep_for(kLook);
    for (size_t i = 0; i < open.size();) {
      const auto& [index, request] = open[i];
      const RequestTimes& times = request->stream->times;
      if (times.finished_ns == 0) {
        ++i;
        continue;
      }
      client.wait(*request, -1, std::chrono::seconds(10));
      TimedAnswer& answer = result.answers[index];
      answer.answer = client.poll(*request);
      answer.first_ns = times.first_token_ns;
      answer.finished_ns = moved_ns = times.finished_ns;
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (now_ns() - moved_ns > kStuckNs) return fail(StatusCode::kUnavailable, "nothing has ended for ten minutes");
  }
  result.ended_ns = now_ns();
  return result;
}

}  // namespace tailrace
