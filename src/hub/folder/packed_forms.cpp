// Where each form keeps its numbers: MXFP4 transformers:integrations/mxfp4.py; FP8 github
// deepseek-ai/DeepSeek-V3, inference/kernel.py; GPTQ github AutoGPTQ/AutoGPTQ,
// nn_modules/qlinear/qlinear_cuda.py, and ModelCloud/GPTQModel, utils/model.py for the two kinds of
// zero points; AWQ github casper-hansen/AutoAWQ, modules/linear/gemm.py; compressed-tensors github
// vllm-project/compressed-tensors, compressors/pack_quantized, naive_quantized, nvfp4 (the order of
// halves) and mxfp4, quantization/lifecycle/forward.py (the global scale divides); ModelOpt github
// NVIDIA/Model-Optimizer, modelopt/torch/quantization/qtensor/nvfp4_tensor.py (the same order, the
// second scale multiplies), modelopt/torch/export/quant_utils.py and unified_export_hf.py (experts
// in one tensor), one scale a row github
// vllm-project/vllm, model_executor/layers/quantization/modelopt.py; FBGEMM
// transformers:integrations/fbgemm_fp8.py; bitsandbytes github
// bitsandbytes-foundation/bitsandbytes, nn/modules.py (names), functional.py (the state, nested
// scales), backends/default/ops.py (the order of halves, the products) and _ops.py (8 bits).
#include "hub/folder/packed_forms.h"

#include <algorithm>

#include "hub/folder/packed_families.h"

namespace moe {
namespace {

using PackingKind = Packing::Kind;

constexpr DType kF8[] = {DType::f8_e4m3}, kBytes[] = {DType::f8_e4m3, DType::i8},
                kUnsigned[] = {DType::u8}, kSigned[] = {DType::i8}, kWords[] = {DType::i32};
constexpr bool kMayBeMissing = false;

constexpr PackedForm kPackedForms[] = {
    {PackingKind::mxfp4,
     "_blocks",
     "",
     {},
     {{"_scales", &PackedParts::scales}},
     nullptr,
     mxfp4_shape,
     unpack_mxfp4},
    {PackingKind::fp8, "", "", kF8, {{"_scale_inv", &PackedParts::scales}}, fp8_matrix},
    {PackingKind::gptq,
     ".qweight",
     ".weight",
     {},
     {{".scales", &PackedParts::scales},
      {".qzeros", &PackedParts::zeros},
      {".g_idx", &PackedParts::groups, kMayBeMissing}},
     gptq_matrix},
    {PackingKind::awq,
     ".qweight",
     ".weight",
     {},
     {{".scales", &PackedParts::scales}, {".qzeros", &PackedParts::zeros}},
     awq_matrix},
    {PackingKind::compressed,
     ".weight_packed",
     ".weight",
     kWords,
     {{".weight_scale", &PackedParts::scales},
      {".weight_shape", &PackedParts::shape},
      {".weight_zero_point", &PackedParts::zeros, kMayBeMissing},
      {".weight_g_idx", &PackedParts::groups, kMayBeMissing}},
     words_matrix},
    {PackingKind::compressed,
     ".weight",
     ".weight",
     kBytes,
     {{".weight_scale", &PackedParts::scales},
      {".weight_zero_point", &PackedParts::zeros, kMayBeMissing}},
     bytes_matrix},
    {PackingKind::compressed,
     ".weight_packed",
     ".weight",
     kUnsigned,
     {{".weight_scale", &PackedParts::scales}},
     nullptr,
     mxfp4_matrix_shape,
     unpack_mxfp4_matrix,
     kUnsigned},
    {PackingKind::compressed,
     ".weight_packed",
     ".weight",
     kUnsigned,
     {{".weight_scale", &PackedParts::scales},
      {".weight_global_scale", &PackedParts::scale_of_scales}},
     nvfp4_divided_matrix},
    // Experts of a layer in one tensor, whose name is the weight's.
    {PackingKind::modelopt,
     "_proj",
     "_proj",
     kF8,
     {{"_proj_weight_scale", &PackedParts::scales}},
     f8_bank},
    {PackingKind::modelopt,
     "_proj",
     "_proj",
     kUnsigned,
     {{"_proj_weight_scale", &PackedParts::scales},
      {"_proj_weight_scale_2", &PackedParts::scale_of_scales}},
     nvfp4_bank},
    {PackingKind::modelopt,
     ".weight",
     ".weight",
     kF8,
     {{".weight_scale", &PackedParts::scales}},
     bytes_matrix},
    {PackingKind::modelopt,
     ".weight",
     ".weight",
     kUnsigned,
     {{".weight_scale", &PackedParts::scales}, {".weight_scale_2", &PackedParts::scale_of_scales}},
     nvfp4_matrix},
    {PackingKind::fbgemm,
     ".weight",
     ".weight",
     kF8,
     {{".weight_scale", &PackedParts::scales}},
     bytes_matrix},
    {PackingKind::bitsandbytes,
     ".weight",
     ".weight",
     kUnsigned,
     {{".weight.absmax", &PackedParts::scales},
      {".weight.quant_map", &PackedParts::map},
      {".weight.quant_state.bitsandbytes__nf4", &PackedParts::state, kMayBeMissing},
      {".weight.quant_state.bitsandbytes__fp4", &PackedParts::state, kMayBeMissing},
      {".weight.nested_absmax", &PackedParts::outer_scales, kMayBeMissing},
      {".weight.nested_quant_map", &PackedParts::outer_map, kMayBeMissing}},
     bitsandbytes4_matrix},
    {PackingKind::bitsandbytes,
     ".weight",
     ".weight",
     kSigned,
     {{".SCB", &PackedParts::scales}, {".weight_format", &PackedParts::order, kMayBeMissing}},
     bitsandbytes8_matrix},
};

}  // namespace

bool PackedForm::has_numbers_in(std::string_view name, DType dtype) const {
  return name.ends_with(numbers) &&
         (types.empty() || std::ranges::find(types, dtype) != types.end());
}

std::span<const PackedForm> packed_forms() { return kPackedForms; }

}  // namespace moe
