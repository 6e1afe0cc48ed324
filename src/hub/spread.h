// Experts that lie on several processes (model/model.h), on their way to a file, which the first of
// the processes writes.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "comm/group.h"
#include "hub/tensor_map.h"

namespace moe {

// Experts [begin, end) of a bank into `out` on the first process, one after another. `value`: those
// that are here, as `share` says. Collective.
void bring_experts(const comm::Group&, void* out, const Tensor& value, const Param::Share& share,
                   int64_t begin, int64_t end);

// Where they land: room for one layer's experts on the first process.
class Landing {
 public:
  explicit Landing(const comm::Group& group) : group_(group) {}
  bool is_first() const { return group_.is_first(); }
  // Room for the whole of a bank f32, used again for every layer; empty but on the first process.
  Tensor room_for(const Param&);
  // The same tensor of the file, its pieces being parameters that stand where experts land.
  FileTensor landed(FileTensor);
  // Brings what the pieces of `tensor` hold to where those of landed(tensor) stand. Collective.
  void bring(const FileTensor& tensor);

 private:
  comm::Group group_;
  std::map<std::pair<ParamKind, bool>, std::vector<float>> room_;  // by kind, and whether a bias
  std::map<const Param*, std::unique_ptr<Param>> stand_ins_;
};

}  // namespace moe
