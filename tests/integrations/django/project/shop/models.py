from django.db import models


class Order(models.Model):
    what = models.CharField(max_length=50)
    paid = models.IntegerField(default=0)
