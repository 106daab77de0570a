#include "ids/workload.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace tailrace {
namespace {

class PromptFile {
 public:
  explicit PromptFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / ("tailrace_prompts_" + std::to_string(getpid()))) {
    std::ofstream(path_) << text;
  }
  ~PromptFile() { std::filesystem::remove(path_); }
  IdsOptions options() const {
    IdsOptions o;
    o.prompt_file = path_.string();
    return o;
  }

 private:
  std::filesystem::path path_;
};

TEST(Workload, prompts_of_a_file) {
  PromptFile file("1 2 3\n\n4,5\n");
  IdsOptions options = file.options();
  options.output_len = 7;
  options.stop_ids = {9};
  const auto requests = make_requests(options, 10, false);
  ASSERT_TRUE(requests.has_value()) << requests.error().message();
  ASSERT_EQ(requests->size(), 2u);
  EXPECT_EQ((*requests)[0].prompt_ids, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ((*requests)[1].prompt_ids, (std::vector<TokenId>{4, 5}));
  EXPECT_EQ((*requests)[1].max_tokens, 7);
  EXPECT_EQ((*requests)[1].stop_token_ids, (std::vector<TokenId>{9}));
}

TEST(Workload, bad_prompts_name_the_line_or_the_id) {
  const auto error = [](const std::string& text) {
    PromptFile file(text);
    const auto requests = make_requests(file.options(), 10, false);
    EXPECT_FALSE(requests.has_value());
    return requests ? "" : requests.error().message();
  };
  EXPECT_NE(error("1 2\n3 4294967297").find("line 2"), std::string::npos);  // the last word of the file
  EXPECT_NE(error("1 2\n3 x 4\n").find("line 2"), std::string::npos);
  EXPECT_NE(error("1 2\n3 10\n").find("id 10"), std::string::npos);
  EXPECT_NE(error("1 -1\n").find("id -1"), std::string::npos);
  EXPECT_NE(error("\n").find("no prompts"), std::string::npos);
  IdsOptions missing;
  missing.prompt_file = "/no/such/file";
  EXPECT_FALSE(make_requests(missing, 10, false).has_value());
}

TEST(Workload, random_prompts_follow_the_seed) {
  IdsOptions options;
  options.prompts = 5;
  options.prompt_len = 40;
  const auto a = make_requests(options, 100, false), b = make_requests(options, 100, false);
  options.seed = 2;
  const auto c = make_requests(options, 100, false), spread = make_requests(options, 100, true);
  ASSERT_EQ(a->size(), 5u);
  for (const Request& request : *a) EXPECT_EQ(request.prompt_ids.size(), 40u);
  EXPECT_EQ((*a)[4].prompt_ids, (*b)[4].prompt_ids);
  EXPECT_NE((*a)[4].prompt_ids, (*c)[4].prompt_ids);
  EXPECT_NE((*spread)[0].prompt_ids.size(), (*spread)[1].prompt_ids.size());
}

}  // namespace
}  // namespace tailrace
