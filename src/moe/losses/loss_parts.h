// The single losses that aux_losses_forward and aux_losses_backward_acc put together; included by
// their .cpp files only.
#pragma once

#include "moe/losses/aux_loss.h"

namespace moe {

// balance_loss.cpp. value [1] f32, ds [N,E] or dw [N,K] += coef . the gradient, whichever the loss
// takes its probabilities from.
void balance_forward(Run&, Tensor value, const Routing&, const Pass&, const BalanceLoss&);
void balance_backward_acc(Run&, Tensor ds, Tensor dw, const Routing&, const Pass&,
                          const BalanceLoss&, float coef);
void device_forward(Run&, Tensor value, const Routing&, const Pass&, const DeviceLoss&);
void device_backward_acc(Run&, Tensor ds, const Routing&, const Pass&, const DeviceLoss&,
                         float coef);
void communication_forward(Run&, Tensor value, const Routing&, const Pass&, const DeviceLoss&);
void communication_backward_acc(Run&, Tensor ds, const Routing&, const Pass&, const DeviceLoss&,
                                float coef);

// load_loss.cpp. The second one is a constant where no noise was drawn or every expert is chosen.
void importance_forward(Run&, Tensor value, const Routing&);
void importance_backward_acc(Run&, Tensor dw, const Routing&, float coef);
void load_forward(Run&, Tensor value, const Routing&);
void load_backward_acc(Run&, Tensor dlogits, Tensor dclean, Tensor dsigma, const Routing&,
                       float coef);

}  // namespace moe
