// Files of importance: what is written is read, what llama.cpp's older form says, and what is
// refused.
#include "hub/gguf/imatrix.h"

#include <limits>

#include "core/file.h"
#include "support/check.h"
#include "support/files.h"

namespace moe::test::imatrix_test {
namespace {

Importance made() {
  Importance out;
  out.tensors["blk.0.attn_q.weight"] = {{1, 2, 3, 4}, {7}};
  out.tensors["blk.0.ffn_up_exps.weight"] = {{1, 0, 3, 4, 0, 0}, {5, 0, 2}};
  out.texts = {"some.txt"};
  out.windows = 2;
  out.window = 16;
  return out;
}

TEST(Imatrix, WhatIsWrittenIsRead) {
  const TempFolder folder;
  const std::string path = folder / "made.gguf";
  write_importance(path, made());
  const Importance got = read_importance(path), want = made();
  ASSERT_EQ(got.tensors.size(), 2u);
  for (const auto& [name, sums] : want.tensors) {
    EXPECT_EQ(got.tensors.at(name).squares, sums.squares) << name;
    EXPECT_EQ(got.tensors.at(name).rows, sums.rows) << name;
  }
  EXPECT_EQ(got.texts, want.texts);
  EXPECT_EQ(got.windows, 2);
  EXPECT_EQ(got.window, 16);
  write_importance(path, made());  // over one of its kind
}

void put(std::vector<GgufItem>& items, const char* name, const std::vector<float>& numbers,
         std::vector<int64_t> shape) {
  items.push_back({name, DType::f32, shape, [&numbers, shape](int64_t) {
                     auto* data = const_cast<float*>(numbers.data());
                     if (shape.size() == 1) return Tensor(data, DType::f32, {shape[0]});
                     return Tensor(data, DType::f32, {shape[0], shape[1]});
                   }});
}

// llama.cpp drops the dimension of one matrix, and lets one count stand for many.
TEST(Imatrix, OneCountForAllMatrices) {
  const TempFolder folder;
  const std::string path = folder / "one.gguf";
  const std::vector<float> squares = {1, 2, 3, 4}, count = {8};
  std::vector<GgufItem> items;
  put(items, "a.in_sum2", squares, {4});
  put(items, "a.counts", count, {1});
  put(items, "b.in_sum2", squares, {2, 2});
  put(items, "b.counts", count, {1, 1});
  write_gguf(path, {{"general.type", GgufEntry::Type::string, std::string("imatrix")}}, items);
  const Importance got = read_importance(path);
  EXPECT_EQ(got.tensors.at("a").rows, std::vector<float>{8});
  EXPECT_EQ(got.tensors.at("b").rows, (std::vector<float>{8, 8}));
}

TEST(Imatrix, RefusesWhatIsNone) {
  const TempFolder folder;
  const std::string path = folder / "bad.gguf";
  const auto written = [&](const char* type, const std::vector<std::string>& names,
                           const std::vector<float>& numbers, std::vector<int64_t> shape) {
    std::filesystem::remove(path);
    std::vector<GgufItem> items;
    for (const std::string& name : names) put(items, name.c_str(), numbers, shape);
    write_gguf(path, {{"general.type", GgufEntry::Type::string, std::string(type)}}, items);
  };
  const float infinity = std::numeric_limits<float>::infinity();
  written("model", {"a.in_sum2", "a.counts"}, {1}, {1});
  EXPECT_FAILS(read_importance(path), "holds no importance matrix");
  EXPECT_FAILS(write_importance(path, made()), "choose another name");
  written("imatrix", {"a.in_sum2"}, {1}, {1});
  EXPECT_FAILS(read_importance(path), "has no \"a.counts\" beside it");
  written("imatrix", {"a.counts"}, {1}, {1});
  EXPECT_FAILS(read_importance(path), "has no \"a.in_sum2\" beside it");
  written("imatrix", {"a.weight"}, {1}, {1});
  EXPECT_FAILS(read_importance(path), "neither the sums");
  written("imatrix", {"a.in_sum2", "a.counts"}, {-1}, {1});
  EXPECT_FAILS(read_importance(path), "none is below zero");
  written("imatrix", {"a.in_sum2", "a.counts"}, {infinity}, {1});
  EXPECT_FAILS(read_importance(path), "finite");
  written("imatrix", {"a.in_sum2", "a.counts"}, {1, 2}, {2});
  EXPECT_FAILS(read_importance(path), "do not belong together");
}

// The older form, byte by byte.
class Dat {
 public:
  template <class T>
  Dat& put(T x) {
    bytes_.append(reinterpret_cast<const char*>(&x), sizeof x);
    return *this;
  }
  Dat& text(std::string_view t) {
    put(static_cast<int32_t>(t.size()));
    bytes_ += t;
    return *this;
  }
  Importance read(size_t cut = 0) const {
    return read_importance_dat(std::as_bytes(std::span(bytes_.data(), bytes_.size() - cut)),
                               "old.dat");
  }

 private:
  std::string bytes_;
};
Dat dat() {
  return Dat().put(int32_t{1}).text("a").put(int32_t{3}).put(int32_t{2}).put(1.5f).put(2.5f);
}

TEST(Imatrix, TheOlderForm) {
  const Importance got = dat().read();
  EXPECT_EQ(got.tensors.at("a").squares, (std::vector<float>{1.5f, 2.5f}));
  EXPECT_EQ(got.tensors.at("a").rows, std::vector<float>{3});
  const Importance more = dat().put(int32_t{9}).text("some.txt").read();
  EXPECT_EQ(more.windows, 9);
  EXPECT_EQ(more.texts, std::vector<std::string>{"some.txt"});
  for (size_t cut = 1; cut < 20; ++cut) EXPECT_FAILS(dat().read(cut), "old.dat");
  EXPECT_FAILS(Dat().put(int32_t{0}).read(), "number of entries");
  EXPECT_FAILS(Dat().put(int32_t{1}).put(int32_t{-5}).read(), "name of an entry");
  EXPECT_FAILS(Dat().put(int32_t{1}).put(int32_t{1 << 30}).read(), "ends in the middle");
}

}  // namespace
}  // namespace moe::test::imatrix_test
