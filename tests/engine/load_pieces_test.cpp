// Large matrices are read and packed in pieces: they lie in memory as the backend packs them whole.
#include <gtest/gtest.h>

#include <cstring>

#include "support/checkpoint_writer.h"
#include "support/engine_fixture.h"

namespace tailrace {
namespace {

constexpr int64_t kVocab = 9001, kHidden = 1024;  // 18.4 MB in bf16: two pieces, the second no whole tiles

TEST(LoadPieces, a_large_matrix_is_packed_as_if_it_were_packed_at_once) {
  TempDir dir;
  nlohmann::json config = tiny_llama_config();
  config.update({{"vocab_size", kVocab}, {"hidden_size", kHidden}, {"num_hidden_layers", 1}});
  write_random_checkpoint(dir.path(), config, 5);
  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.has_value());
  for (const char* name : {"cpu", "reference"}) {
    SCOPED_TRACE(name);
    TestEngine engine(test_setup(dir.path(), name));
    ASSERT_TRUE(engine.ok());
    const std::unique_ptr<HostBackend> backend =
        std::strcmp(name, "cpu") == 0 ? create_cpu_backend({}) : create_reference_backend({});
    const auto& blocks = engine.host().model().blocks;
    const Weight& embedding = std::get<EmbedBlock>(blocks.front()).table;
    const Weight& head = std::get<HeadBlock>(blocks.back()).head;
    for (const auto& [tensor, weight] :
         {std::pair("model.embed_tokens.weight", embedding), std::pair("lm_head.weight", head)}) {
      const TensorView* stored = (*checkpoint)->find(tensor);
      ASSERT_NE(stored, nullptr) << tensor;
      ASSERT_GT(stored->bytes, size_t{16} << 20);
      std::vector<std::byte> whole(*backend->packed_bytes(*stored));
      ASSERT_TRUE(backend->pack(*stored, whole.data()).ok());
      EXPECT_EQ(std::memcmp(whole.data(), weight.data, whole.size()), 0) << tensor;
    }
    const LoadReport& load = engine.host().report().load;
    EXPECT_EQ(load.bytes, (*checkpoint)->tensor_bytes());
    EXPECT_GT(load.seconds, 0);
  }
}

}  // namespace
}  // namespace tailrace
