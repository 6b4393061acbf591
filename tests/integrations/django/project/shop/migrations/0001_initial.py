from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations: ClassVar = [
        migrations.CreateModel(
            "Order",
            [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("what", models.CharField(max_length=50)),
                ("paid", models.IntegerField(default=0)),
            ],
        )
    ]
