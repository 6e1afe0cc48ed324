// A model as a handle: folders, figures, text to ids and back.
#include <iterator>
#include <nlohmann/json.hpp>

#include "api/call.h"
#include "api/options.h"
#include "hub/adapter.h"
#include "hub/foreign.h"
#include "infer/eval_routing.h"
#include "jobs/replies.h"
#include "options/common.h"
#include "options/read.h"

namespace moe::api {
namespace {

int64_t size_of(const ModelConfig& c, std::string_view name) {
  const bool routed = c.moe_layer_count() > 0;
  if (name == "vocab") return c.vocab;
  if (name == "context") return c.context;
  if (name == "width") return c.width;
  if (name == "layers") return c.layers;
  if (name == "moe_layers") return c.moe_layer_count();
  if (name == "experts") return routed ? c.routing.experts : 0;
  if (name == "slots") return routed ? eval_spec(c.routing).slots() : 0;
  return -1;
}

}  // namespace
}  // namespace moe::api

using namespace moe;
using namespace moe::api;

extern "C" {

moe_status moe_load(moe_model** model, const char* folder, const char* options) {
  return guarded([&] {
    need(model, "moe_load: model") = nullptr;
    const std::string path = need_folder(folder, "moe_load: folder");
    LoadOptions asked;
    read_caller_options(fields(asked), options);
    const int threads = thread_count(asked.compute.threads);
    LoadedModel loaded = open_adapted(path, asked.adapter, asked.memory);
    const DType dtype = asked.compute.dtype.value_or(natural_dtype(*loaded.model));
    *model = new moe_model(std::move(loaded), threads, dtype, asked.memory, asked.compute);
  });
}

void moe_close(moe_model* model) { delete model; }

moe_status moe_save(moe_model* model, const char* folder, const char* options) {
  return guarded([&] {
    LoadedModel& loaded = need(model, "moe_save: model").loaded;
    const std::string path = need_folder(folder, "moe_save: folder");
    SaveOptions asked;
    read_caller_options(fields(asked), options);
    check_shadows_nothing(path);
    save_model(path, *loaded.model, *loaded.tokenizer, asked.dtype);
  });
}

moe_status moe_inspect(moe_model* model, char** json) {
  return guarded([&] {
    need(json, "moe_inspect: json") = nullptr;
    const ModelConfig& config = need(model, "moe_inspect: model").loaded.model->config();
    *json = given(inspect_reply(config, {.batch = 8, .context = config.context}).dump());
  });
}

int64_t moe_size(const moe_model* model, const char* name) {
  return model == nullptr || name == nullptr ? -1 : size_of(model->loaded.model->config(), name);
}

moe_status moe_encode(moe_model* model, const char* text, size_t bytes, int32_t** ids,
                      size_t* count) {
  return guarded([&] {
    need(ids, "moe_encode: ids") = nullptr;
    need(count, "moe_encode: count") = 0;
    const std::span<const char> given_text = need(text, bytes, "moe_encode: text");
    const std::vector<int32_t> encoded =
        need(model, "moe_encode: model")
            .loaded.tokenizer->encode({given_text.data(), given_text.size()});
    *ids = given(encoded);
    *count = encoded.size();
  });
}

moe_status moe_decode(moe_model* model, const int32_t* ids, size_t count, char** text,
                      size_t* bytes) {
  return guarded([&] {
    need(text, "moe_decode: text") = nullptr;
    if (bytes != nullptr) *bytes = 0;
    const std::string decoded = need(model, "moe_decode: model")
                                    .loaded.tokenizer->decode(need(ids, count, "moe_decode: ids"));
    *text = given(decoded);
    if (bytes != nullptr) *bytes = decoded.size();
  });
}
}
