#include "hub/foreign.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "support/files.h"

namespace moe::test::foreign_test {
namespace {

TEST(ForeignWeights, AreNamed) {
  for (const char* name :
       {"pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json",
        "model-00001-of-00003.safetensors", "model.safetensors.index.json", "consolidated.00.pth",
        "model.pt", "run.ckpt", "tf_model.h5", "flax_model.msgpack", "llama.Q4_K_M.gguf"}) {
    const TempFolder folder;
    put(folder / name, "x");
    EXPECT_EQ(foreign_weights(folder.path()), name);
  }
}

TEST(ForeignWeights, OurOwnAreNone) {
  const TempFolder folder;
  EXPECT_FALSE(foreign_weights(folder.path()));
  EXPECT_FALSE(foreign_weights(folder / "none"));
  for (const char* name :
       {"model.safetensors", "config.json", "tokenizer.json", "trainer-20.safetensors",
        "metrics.jsonl", "report.html", "training_args.bin",
        ".model.safetensors.tmp-0123456789abcdef", "adapter/adapter_model.safetensors"})
    put(folder / name, "x");
  EXPECT_EQ(foreign_weights(folder.path()), std::nullopt);
}

}  // namespace
}  // namespace moe::test::foreign_test
