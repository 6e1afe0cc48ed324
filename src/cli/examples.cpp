#include "cli/examples.h"

namespace moe::cli {
namespace {

struct Examples {
  std::string_view verb, lines;
};

constexpr Examples kExamples[] = {
    {"train", R"(  moe train --preset tiny --data FILE --out DIR
  moe train --from MODEL --tune lora --lr 2e-4 --data FILE --out DIR
  moe train --resume --out DIR)"},
    {"tokenize", "  moe tokenize --data DIR --tokenizer bpe:4096 --hold-out 0.1 --out DIR"},
    {"generate", R"(  moe generate smollm2 -p "The capital of France is" -n 8 --temperature 0
  moe generate model.gguf -f FILE)"},
    {"chat", R"(  moe chat smollm2
  moe chat Qwen/Qwen3-0.6B --chat-template-kwargs '{"enable_thinking": false}')"},
    {"serve", R"(  moe serve smollm2
  moe serve model.gguf --port 8000 --context 4096)"},
    {"get", R"(  moe get
  moe get smollm2)"},
    {"score", "  moe score MODEL --text FILE"},
    {"quiz", "  moe quiz MODEL model-q4.gguf --text FILE"},
    {"compare", "  moe compare MODEL model-q4.gguf --text FILE --html compare.html"},
    {"inspect", R"(  moe inspect MODEL
  moe inspect MODEL --text FILE --html report.html)"},
    {"bench", R"(  moe bench MODEL
  moe bench peak)"},
    {"league",
     R"(  moe league --preset tiny --minutes 10 --data FILE --hold-out 0.05 --out DIR
  moe league --out DIR)"},
    {"plan", "  moe plan --preset olmoe-mini --processes 8"},
    {"convert", R"(  moe convert MODEL model-q4.gguf --quant q4_k_m
  moe convert MODEL model-q8.gguf --quant q8_0 --verify FILE
  moe convert model.gguf DIR --dtype bf16)"},
    {"carve", "  moe carve MODEL DIR --shared 2 --active 2 --experts 8 --calibration FILE"},
    {"upcycle", "  moe upcycle MODEL DIR --experts 8 --top-k 2"},
    {"merge", "  moe merge DIR --base MODEL --expert MODEL:FILE --expert MODEL:FILE"},
    {"prune", "  moe prune MODEL DIR --experts 6 --calibration FILE"},
    {"recipes", R"(  moe recipes
  moe recipes mixtral)"},
};

}  // namespace

std::string_view examples_of(std::string_view verb) {
  for (const Examples& row : kExamples)
    if (row.verb == verb) return row.lines;
  return "";
}

}  // namespace moe::cli
