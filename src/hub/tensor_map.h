// Which tensor of a file is which piece of which parameter. Loading and saving walk the same map,
// made from an architecture's rows of names.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "hub/folder/architectures.h"
#include "hub/hub.h"
#include "model/model.h"

namespace moe {

// Where the rows of a parameter's heads stand in a file; where the piece is transposed, its
// columns.
struct RowOrder {
  int64_t head = 0;      // rows of a head; 0: rows stand as in the Model
  int64_t turning = 0;   // so many rows of a head turn with the position, in the Model the first
  bool paired = false;   // they stand in pairs of neighbours: 0, R/2, 1, R/2 + 1, ...
  bool swapped = false;  // the second half of them stands before the first
  bool last = false;     // they stand behind the others
  // Heads begin so many rows apart, behind `before` rows of other pieces; 0: one behind the other.
  int64_t apart = 0, before = 0;
  // From row `begin` on heads of so many groups, `each` of them in one, stand the other way round:
  // the first of every group, the second of every group, ...; 0: they do not.
  int64_t groups = 0, each = 0, begin = 0;

  bool as_in_model() const { return head == 0; }
  int64_t file_row(int64_t model_row) const;
  int64_t model_row(int64_t file_row) const;
  // Whether a row of the file is one of this piece's heads'.
  bool has(int64_t file_row) const {
    return apart == 0 || (file_row % apart >= before && file_row % apart < before + head);
  }
};

// One tensor as it lies in the file: its pieces one after another.
struct FileTensor {
  struct Piece {
    Param* param = nullptr;
    int64_t expert = -1;     // of a bank: which matrix; -1: the whole parameter
    bool transpose = false;  // the last two dimensions trade places in the file
    // So many matrices, one behind another, make up the parameter's one.
    int64_t heads = 0;
    // Of the parameter's one matrix so many rows from `begin` on; 0: all of it.
    struct Rows {
      int64_t begin = 0, count = 0;
    } rows = {};
    RowOrder order = {};
    RowOrder columns = {};  // of a piece that is not transposed
    // What the file has of each number x of the Model, and so many times that.
    enum class Change { none, plus_one, exp, minus_exp } change = Change::none;
    float factor = 1;

    bool keeps_numbers() const { return change == Change::none && factor == 1; }
  };

  std::string name;
  std::vector<int64_t> shape;
  std::vector<Piece> pieces;
  // pieces stand side by side along the columns, not one after another along the rows
  bool columns = false;
  bool number = false;  // files have it without dimensions; here its shape is [1]
  bool alias = false;   // may be missing: a second name of a tied head, or, without pieces, what
                        // programs store and nobody needs
};

// A piece's numbers as the file has them, from those of the Model and back, in place.
void to_file(std::span<float>, const FileTensor::Piece&);
void from_file(std::span<float>, const FileTensor::Piece&);
// A row's numbers in the file's order of columns, in place; `dtype`: its blocks, none of which a
// head cuts.
void columns_to_file(std::span<float> row, const FileTensor::Piece&);
void columns_to_file(std::span<std::byte> row, const FileTensor::Piece&, DType dtype);

// Matrix m of a piece in the Model's order, wherever it lies. A vector is one row.
Tensor matrix_of(const FileTensor::Piece&, int64_t m);
// All numbers of a piece of one matrix, or of a whole parameter.
Tensor numbers_of(const FileTensor::Piece&);
// The row, which holds row r of that matrix, with what hangs on it (model/adapters.h).
void adapt_row(std::span<float> row, const FileTensor::Piece&, int64_t m, int64_t r);

// What a LoadedModel was read from.
struct ModelSource {
  std::shared_ptr<const NamedTensors> file;  // keeps the bytes
  std::vector<FileTensor> map;
};

// Every parameter stands in the map once. Fails, naming it, when the rows do not name a parameter.
std::vector<FileTensor> map_tensors(const TensorNames&, Model&);
std::vector<FileTensor> map_tensors(const Architecture&, Model&);

// Takes the names that the file has without the prefix, or with another in its place, as some
// writers have them.
void change_prefix(std::vector<FileTensor>&, const TensorNames&, const NamedTensors&);

// Takes the names as a model of pictures and text has those of its text.
void enter_text(std::vector<FileTensor>&, const NamedTensors&);

// How many numbers a Model of this config holds, without making one. A double, so that hostile
// sizes cannot overflow.
double parameter_count(const ModelConfig&);

// Fails where the config asks for many more numbers than the file holds, so that only what the
// file's own size justifies is ever allocated. A file that lacks some tensors is let through:
// check_account refuses it with their names.
void check_size(const ModelConfig&, const NamedTensors&, std::string_view asker = "config.json");
// Fails, naming the tensor, unless the file holds exactly the map's tensors, each in its shape. An
// alias may be missing. `asker` says what asks for them. What is beside the model of text may be
// left out, and is returned.
std::vector<Beside> check_account(const std::vector<FileTensor>&, const NamedTensors&,
                                  std::string_view asker = "config.json",
                                  BesideText = BesideText::refuse);
// Gives the parameters their numbers; the account must have been checked. An alias must hold the
// numbers of what it is an alias of. training: a Model that owns its memory; every dtype becomes
// f32. inference: a bound Model; the operands of the large products (embedding, head, attention,
// FFNs) are views of the file in its dtype, or copies in that dtype where the file has another
// order; everything else is an f32 copy. Who loads keeps the file alive (Model::keep).
void bind_tensors(const std::vector<FileTensor>&, const NamedTensors&, Model&, LoadFor);
// Whether a parameter takes some of its numbers; where the experts lie on several processes, here.
bool is_taken_here(const FileTensor&);
// The items to write, in the order of the map, buffers always in f32; they view the Model's memory
// and share one buffer, so they are for one write at a time. Where the experts lie on several
// processes all of them produce the items, in the order in which the first one writes them
// (produce_in_order).
std::vector<SafetensorsItem> items_of(const std::vector<FileTensor>&, DType dtype, bool with_alias,
                                      const comm::Group& experts = {});

}  // namespace moe
