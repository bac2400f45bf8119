"""Fine-tuning of a few parameters: adapters of low rank beside frozen weights (Hu et al. 2021, arXiv:2106.09685).

model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"]))
model.print_trainable_parameters()
...  # train it like any model
model.save_pretrained("adapter")  # the adapters alone, in the format of the library PEFT
model = PeftModel.from_pretrained(AutoModel.from_pretrained("base"), "adapter").merge_and_unload()
"""

from bertcore.lora.config import LoraConfig, TaskType
from bertcore.lora.peft_model import PeftModel, get_peft_model

__all__ = ["LoraConfig", "PeftModel", "TaskType", "get_peft_model"]
