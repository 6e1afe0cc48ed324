// The keys of each form as its makers' programs write them: transformers
// (utils/quantization_config.py), GPTQModel and AutoGPTQ (quantization/config.py), AutoAWQ
// (models/_config.py), compressed-tensors (quantization/quant_config.py, quant_args.py), ModelOpt
// (modelopt/torch/export/convert_hf_config.py, quant_utils.py).
#include "hub/folder/packing.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/error.h"
#include "hub/folder/field_visitors.h"

namespace moe {
namespace {

constexpr const char *kConfig = "quantization_config", *kMethod = "quant_method";
constexpr std::string_view kBitsandbytes = "bitsandbytes";
constexpr const char* kOfBitsandbytes[] = {"load_in_4bit", "load_in_8bit"};

// What else such configs say: which modules stayed as they were and how each was packed, which
// shows in the tensors; how other programs multiply; and how the numbers were found.
constexpr const char* kOfPrograms[] = {
    // modules and tensors
    "modules_to_not_convert", "ignored_layers", "ignore", "lm_head", "dynamic", "sym", "zero_point",
    "desc_act", "static_groups", "pack_dtype", "block_name_to_quantize",
    "module_name_preceding_first_block", "modules_in_block_to_quantize", "quantization_status",
    "global_compression_ratio",
    // products and caches
    "dequantize", "run_compressed", "activation_scheme", "act_per_tensor", "scale_fmt",
    "kv_cache_scheme", "use_exllama", "disable_exllama", "exllama_config", "use_cuda_fp16",
    "max_input_length", "do_fuse", "modules_to_fuse", "fuse_max_seq_len",
    // how it was made
    "meta", "true_sequential", "damp_percent", "damp_auto_increment", "act_group_aware", "hyb_act",
    "mse", "dataset", "tokenizer", "batch_size", "pad_token_id", "cache_block_outputs",
    "model_seqlen", "model_name_or_path", "model_file_base_name",
    // AutoRound's
    "autoround_version", "provider", "iters", "nsamples", "seqlen", "lr", "minmax_lr", "amp",
    "low_gpu_mem_usage", "enable_quanted_input", "enable_minmax_tuning", "enable_norm_bias_tuning",
    "gradient_accumulate_steps", "data_type", "scale_dtype"};

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// Fails unless the key is missing or says one of the names, in either case; returns it.
std::string one_of_names(const JsonReader& reader, const char* key,
                         std::initializer_list<std::string_view> names, const char* why) {
  if (!reader.has(key)) return "";
  std::string name = lower_case(reader.get<std::string>(key));
  if (std::ranges::find(names, name) == names.end()) refuse(reader, key, why);
  return name;
}

void read_block(const JsonReader& reader, const char* key, Packing& packing) {
  const auto size = reader.get<std::vector<int64_t>>(key);
  if (size.size() != 2 || std::ranges::any_of(size, [](int64_t n) { return n < 1 || n > 65536; }))
    refuse(reader, key, "two sizes of a block are needed");
  if (packing.block_rows > 0 && (packing.block_rows != size[0] || packing.block_cols != size[1]))
    refuse(reader, key, "blocks of one size are read, and another scheme says others");
  packing.block_rows = size[0];
  packing.block_cols = size[1];
}

// -1 is a whole row, which has one scale.
void read_group_size(const JsonReader& reader, Packing& packing) {
  const auto size = reader.get_in<int64_t>("group_size", -1, kMaxSize);
  if (size == 0) refuse(reader, "group_size", "-1 or a size is needed");
  if (size > 0) packing.groups.push_back(size);
}

Packing read_mxfp4(const JsonReader&) { return {.kind = Packing::Kind::mxfp4}; }

Packing read_fp8(const JsonReader& reader) {
  Packing packing{.kind = Packing::Kind::fp8};
  if (reader.has("fmt")) reader.get_one_of("fmt", {"e4m3", "float8_e4m3fn"});  // are the same
  if (reader.get<bool>("weight_per_tensor", false))
    refuse(reader, "weight_per_tensor", "only scales of blocks are supported, only false");
  if (!reader.has("weight_block_size"))
    fail("{}: FP8 without \"weight_block_size\" is not supported, only scales of blocks are",
         reader.where());
  read_block(reader, "weight_block_size", packing);
  return packing;
}

Packing read_gptq(const JsonReader& reader) {
  Packing packing{.kind = Packing::Kind::gptq, .zeros_less_one = true};
  reader.has("backend");
  if (reader.get<bool>("is_marlin_format", false))
    refuse(reader, "is_marlin_format", "weights in Marlin's order are not read");
  // GPTQModel writes both, transformers 5 the second.
  for (const char* key : {"checkpoint_format", "format"})
    if (one_of_names(reader, key, {"gptq", "gptq_v2"}, "\"gptq\" and \"gptq_v2\" are read") ==
        "gptq_v2")
      packing.zeros_less_one = false;
  for (const char* key : {"rotation", "adapter"})
    if (reader.has(key)) refuse(reader, key, "only null is read");
  const auto bits = reader.get<int64_t>("bits");
  if (bits != 4 && bits != 8) refuse(reader, "bits", "GPTQ is read in 4 and in 8 bits");
  read_group_size(reader, packing);
  return packing;
}

Packing read_awq(const JsonReader& reader) {
  Packing packing{.kind = Packing::Kind::awq};
  for (const char* key : {"version", "format", "checkpoint_format"})
    one_of_names(reader, key, {"gemm"}, "only \"gemm\" is read of AWQ's orders");
  if (reader.has("backend") && lower_case(reader.get<std::string>("backend")) == "llm-awq")
    refuse(reader, "backend", "only \"gemm\" is read of AWQ's orders");
  if (reader.get<int64_t>("bits") != 4) refuse(reader, "bits", "AWQ is read in 4 bits");
  read_group_size(reader, packing);
  return packing;
}

// How a scheme of compressed-tensors packs weights; ModelOpt's are of the same keys.
void read_weights(const JsonReader& weights, Packing& packing) {
  for (const char* key : {"symmetric", "dynamic", "actorder", "observer", "observer_kwargs",
                          "scale_dtype", "zp_dtype"})
    weights.has(key);
  const bool floats =
      one_of_names(weights, "type", {"int", "float"}, "\"int\" and \"float\" are read") == "float";
  const auto bits = weights.get<int64_t>("num_bits");
  if (bits != 4 && bits != 8) refuse(weights, "num_bits", "4 and 8 bits are read");
  const bool mx = packing.kind == Packing::Kind::compressed;
  if (bits == 4 && floats)
    if (const auto size = weights.get<int64_t>("group_size"); size != 16 && !(mx && size == 32))
      refuse(weights, "group_size",
             mx ? "4 bits of type \"float\" are read in groups of 16, as NVFP4, or 32, as MXFP4"
                : "4 bits of type \"float\" are read in groups of 16, as NVFP4");
  one_of_names(weights, "strategy", {"tensor", "channel", "group", "tensor_group", "block"},
               "scales of a \"tensor\", \"channel\", \"group\" and \"block\" are read");
  if (weights.has("group_size")) read_group_size(weights, packing);
  if (weights.has("block_structure")) read_block(weights, "block_structure", packing);
  weights.refuse_unknown();
}

void check_compressed_format(const JsonReader& reader) {
  one_of_names(reader, "format",
               {"dense", "float-quantized", "int-quantized", "naive-quantized", "pack-quantized",
                "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mixed-precision"},
               "\"float-quantized\", \"int-quantized\", \"naive-quantized\", "
               "\"pack-quantized\", \"nvfp4-pack-quantized\" and \"mxfp4-pack-quantized\" are "
               "read");
}

void read_schemes(const JsonReader& reader, Packing& packing) {
  if (!reader.has("config_groups")) return;
  const JsonReader schemes = reader.object("config_groups");
  for (const std::string& name : schemes.keys()) {
    const JsonReader scheme = schemes.object(name);
    check_compressed_format(scheme);
    for (const char* key : {"targets", "input_activations", "output_activations"}) scheme.has(key);
    if (scheme.has("weights")) read_weights(scheme.object("weights"), packing);
    scheme.refuse_unknown();
  }
}

// What programs write where there is none.
bool is_said(const JsonReader& reader, const char* key) {
  return reader.has(key) && !reader.value(key).empty();
}

Packing read_compressed(const JsonReader& reader) {
  Packing packing{.kind = Packing::Kind::compressed};
  reader.has("version");
  check_compressed_format(reader);
  if (is_said(reader, "sparsity_config"))
    one_of_names(reader.object("sparsity_config"), "format", {"dense"},
                 "only \"dense\" is read, no sparse weights");
  if (is_said(reader, "transform_config"))
    refuse(reader, "transform_config", "weights of a turned model are not read");
  if (is_said(reader, "moe_sparsity_config"))
    refuse(reader, "moe_sparsity_config", "experts that were taken out are not read");
  read_schemes(reader, packing);
  return packing;
}

void check_quant_algo(const JsonReader& reader) {
  one_of_names(reader, "quant_algo",
               {"fp8", "fp8_per_channel_per_token", "nvfp4", "w4a16_nvfp4", "mixed_precision"},
               "\"FP8\", \"FP8_PER_CHANNEL_PER_TOKEN\", \"NVFP4\", \"W4A16_NVFP4\" and "
               "\"MIXED_PRECISION\" of these are read");
}

// Layers of several forms are listed one by one; newer versions group them by scheme as well.
void read_quantization(const JsonReader& reader, Packing& packing) {
  for (const char* key :
       {"exclude_modules", "ignore", "kv_cache_quant_algo", "kv_cache_scheme", "group_size"})
    reader.has(key);
  check_quant_algo(reader);
  if (reader.has("quantized_layers")) {
    const JsonReader layers = reader.object("quantized_layers");
    for (const std::string& name : layers.keys()) {
      const JsonReader layer = layers.object(name);
      check_quant_algo(layer);
      layer.refuse_unknown({"group_size"});
    }
  }
  read_schemes(reader, packing);
}

Packing read_modelopt(const JsonReader& reader) {
  Packing packing{.kind = Packing::Kind::modelopt};
  reader.has("producer");
  if (reader.has("quantization")) {
    const JsonReader quantization = reader.object("quantization");
    read_quantization(quantization, packing);
    quantization.refuse_unknown();
  } else {
    read_quantization(reader, packing);
  }
  return packing;
}

Packing read_fbgemm(const JsonReader& reader) {
  reader.has("activation_scale_ub");
  return {.kind = Packing::Kind::fbgemm};
}

Packing read_bitsandbytes(const JsonReader& reader) {
  for (const char* key :
       {"_load_in_4bit", "_load_in_8bit", "bnb_4bit_compute_dtype", "bnb_4bit_use_double_quant",
        "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight", "llm_int8_skip_modules",
        "llm_int8_threshold"})
    reader.has(key);
  bool is_either = false;
  for (const char* key : kOfBitsandbytes) is_either |= reader.get<bool>(key, false);
  if (!is_either)
    fail("{}: neither \"load_in_4bit\" nor \"load_in_8bit\" is true; one is needed",
         reader.where());
  one_of_names(reader, "bnb_4bit_quant_type", {"nf4", "fp4"}, "\"nf4\" and \"fp4\" are read");
  one_of_names(reader, "bnb_4bit_quant_storage", {"uint8"}, "only \"uint8\" is read");
  return {.kind = Packing::Kind::bitsandbytes};
}

struct PackingMethod {
  std::string_view name;  // "quant_method"
  Packing (*read)(const JsonReader&);
};
constexpr PackingMethod kPackingMethods[] = {{"mxfp4", read_mxfp4},
                                             {"fp8", read_fp8},
                                             {"gptq", read_gptq},
                                             {"awq", read_awq},
                                             {"compressed-tensors", read_compressed},
                                             {"modelopt", read_modelopt},
                                             {"fbgemm_fp8", read_fbgemm},
                                             {kBitsandbytes, read_bitsandbytes}};

// Configs of bitsandbytes are older than "quant_method".
std::string method_of(const JsonReader& reader) {
  if (!reader.has(kMethod))
    for (const char* key : kOfBitsandbytes)
      if (reader.get<bool>(key, false)) return std::string(kBitsandbytes);
  return reader.get<std::string>(kMethod);
}

std::string methods_that_are_read() {
  std::string all;
  for (const PackingMethod& method : kPackingMethods)
    all += fmt::format("{}\"{}\"", all.empty() ? "" : ", ", method.name);
  return all + " are read";
}

}  // namespace

Packing read_packing(const JsonReader& config) {
  if (!config.has(kConfig)) return {};
  const JsonReader reader = config.object(kConfig);
  for (const char* key : kOfPrograms) reader.has(key);
  const std::string name = method_of(reader);
  const auto* const method = std::ranges::find(kPackingMethods, name, &PackingMethod::name);
  if (method == std::end(kPackingMethods)) refuse(reader, kMethod, methods_that_are_read().c_str());
  Packing packing = method->read(reader);
  reader.refuse_unknown();
  return packing;
}

Packing read_modelopt_file(std::string_view text, const std::string& where) {
  const Json json = parse_json(text, where);
  const JsonReader reader(json, where);
  const Packing packing = read_modelopt(reader);
  reader.refuse_unknown();
  return packing;
}

}  // namespace moe
