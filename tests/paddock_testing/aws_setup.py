"""aws_setup ENDPOINT: what an operator of AWS has made before a server uses it, in a moto server that does not check
signatures yet: network, cluster, task definition, target group, and a user with keys. Prints JSON. Needs boto3."""

import json
import sys

import boto3

REGION = "eu-central-1"
POLICY = {"Version": "2012-10-17", "Statement": [
    {"Effect": "Allow", "Action": ["ecs:*", "elasticloadbalancing:*"], "Resource": "*"}]}


def client(service):
    return boto3.client(service, region_name=REGION, endpoint_url=sys.argv[1], aws_access_key_id="setup",
                        aws_secret_access_key="setup")


def make_user(iam):
    iam.create_user(UserName="paddock")
    iam.put_user_policy(UserName="paddock", PolicyName="paddock", PolicyDocument=json.dumps(POLICY))
    key = iam.create_access_key(UserName="paddock")["AccessKey"]
    return {"id": key["AccessKeyId"], "secret": key["SecretAccessKey"]}


def main():
    ec2, ecs, elb = client("ec2"), client("ecs"), client("elbv2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsHostnames={"Value": True})
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/17")["Subnet"]["SubnetId"]
    group = ec2.create_security_group(VpcId=vpc, GroupName="paddock", Description="paddock")["GroupId"]
    ecs.create_cluster(clusterName="boxes")
    ecs.register_task_definition(
        family="paddock", networkMode="awsvpc", requiresCompatibilities=["FARGATE"], cpu="256", memory="512",
        containerDefinitions=[{"name": "paddock", "image": "paddock-box:1", "essential": True, "memory": 512,
                               "portMappings": [{"containerPort": 7400}]}])
    targets = elb.create_target_group(Name="boxes", Protocol="HTTP", Port=7400, VpcId=vpc,
                                      TargetType="ip")["TargetGroups"][0]["TargetGroupArn"]
    print(json.dumps({"region": REGION, "cluster": "boxes", "definition": "paddock", "subnet": subnet,
                      "group": group, "targets": targets, **make_user(client("iam"))}))


main()
