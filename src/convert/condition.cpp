#include "convert/condition.h"

#include <Eigen/SVD>
#include <limits>

namespace moe {

double condition_of(const Tensor& m) {
  Eigen::MatrixXd rows(m.rows(), m.cols());
  for (int64_t r = 0; r < m.rows(); ++r)
    for (int64_t c = 0; c < m.cols(); ++c) rows(r, c) = static_cast<double>(m.row<float>(r)[c]);
  if (m.rows() > m.cols()) return std::numeric_limits<double>::infinity();
  const Eigen::VectorXd values = Eigen::BDCSVD<Eigen::MatrixXd>(rows).singularValues();
  const double largest = values(0), smallest = values(values.size() - 1);
  return smallest > 1e-12 * largest ? largest / smallest : std::numeric_limits<double>::infinity();
}

}  // namespace moe
